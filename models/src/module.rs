//! What a layer or a model has to say about itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use autograd::Var;
use autograd::ops::fused::Activation;
use device::{AtCaller, DType, Device, Error, Result};
use tensor::Tensor;

/// What has parameters: a layer, or a model made of layers.
///
/// One method describes it: [`parts`](Module::parts) names the parameters and the modules inside. All else follows from it.
/// A module is shared by reference between lanes, so it is `Send + Sync`; one that is a function of one value is a
/// [`Forward`], too.
///
/// `#[derive(Module)]` writes `parts`: all fields take part under their names, so that none can be forgotten. Each has to be
/// a module: a layer, a parameter ([`Var`]), a buffer ([`Tensor`]), or an `Option`, `Vec`, array, `Box` or `Arc` of these,
/// whose elements are named by number. A field without parameters is marked `#[module(skip)]`; the parts of one marked
/// `#[module(flatten)]` come without the field's name.
///
/// ```
/// # extern crate models as streamgrad;
/// use streamgrad::{Forward, Linear, Module};
/// use autograd::Var;
/// use device::{Device, Result};
///
/// /// `x + scale up(relu(down(x)))`
/// #[derive(Module)]
/// struct Residual {
///     down: Linear,
///     up: Linear,
///     #[module(skip)]
///     scale: f64,
/// }
///
/// impl Forward for Residual {
///     fn forward(&self, input: &Var) -> Result<Var> {
///         let hidden = self.down.forward(input)?.relu()?;
///         input + self.scale * &self.up.forward(&hidden)?
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let dev = Device::cpu();
/// let block = Residual { down: Linear::new(8, 2, &dev)?, up: Linear::new(2, 8, &dev)?, scale: 0.5 };
/// let names: Vec<String> = block.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["down.weight", "down.bias", "up.weight", "up.bias"]);
/// # Ok(())
/// # }
/// ```
///
/// A field that is neither a module nor marked does not compile:
///
/// ```compile_fail,E0277
/// # extern crate models as streamgrad;
/// # use streamgrad::{Linear, Module};
/// #[derive(Module)]
/// struct Scaled { inner: Linear, scale: f64 }
/// # fn main() {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "has no parameters, or does not name them",
    note = "a field without parameters needs `#[module(skip)]`, a struct of layers `#[derive(Module)]`"
)]
pub trait Module: Send + Sync {
    /// Names the module's own parameters and buffers and the modules inside it, in a fixed order.
    fn parts<'a>(&'a self, parts: &mut Parts<'a>);

    /// Hands the same parts out to be replaced, for [`to_dtype`](Module::to_dtype) and [`to_device`](Module::to_device).
    /// `#[derive(Module)]` writes it; a module without it refuses conversions.
    fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
        parts.refused.get_or_insert(std::any::type_name::<Self>());
    }

    /// Every parameter under its dotted name, as in `layers.0.weight`.
    ///
    /// A parameter that two modules share is listed once, under the first name.
    fn named_parameters(&self) -> Vec<(String, Var)> {
        state_of(self).parameters
    }

    /// Every buffer under its dotted name: tensors that a module keeps beside its parameters, such as the running
    /// statistics of [`BatchNorm2d`](crate::BatchNorm2d). They have no gradient, and are saved with the parameters.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        state_of(self).buffers
    }

    /// Every parameter, in the order of [`named_parameters`](Module::named_parameters).
    fn parameters(&self) -> Vec<Var> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// The parameters for which a closure holds, by name and parameter, such as those for one of several
    /// [`Groups`](crate::Groups).
    fn parameters_where(&self, keep: &dyn Fn(&str, &Var) -> bool) -> Vec<Var> {
        let named = self.named_parameters().into_iter();
        named.filter(|(name, parameter)| keep(name, parameter)).map(|(_, parameter)| parameter).collect()
    }

    /// Freezes every parameter, as [`Var::freeze`]: steps from now on compute no gradient for them, and optimizers leave them
    /// alone. Launches nothing.
    ///
    /// ```
    /// # use models::{Forward, Linear, Module, mlp};
    /// # use autograd::Var;
    /// # use device::{DType, Device, Result};
    /// # fn main() -> Result<()> {
    /// # let dev = Device::cpu();
    /// let (body, head) = (mlp(&[4, 8], 7, &dev)?, Linear::new(8, 2, &dev)?);
    /// body.freeze();
    /// let x = Var::constant(tensor::Tensor::ones(&[3, 4], DType::F32, &dev)?);
    /// let gradients = head.forward(&body.forward(&x)?)?.sum_all()?.backward()?;
    /// assert_eq!(gradients.len(), 2);
    /// body.unfreeze();
    /// # Ok(())
    /// # }
    /// ```
    fn freeze(&self) {
        self.parameters().iter().for_each(Var::freeze);
    }

    /// Undoes [`freeze`](Module::freeze).
    fn unfreeze(&self) {
        self.parameters().iter().for_each(Var::unfreeze);
    }

    /// Converts the parameters to another float type, and buffers of floats to that in which it is computed, F32 for 16-bit types.
    ///
    /// The parameters are new ones: optimizers, other handles and recorded values keep the old ones. So convert first, and make the
    /// optimizer of the converted parameters. Shared parameters stay shared, and frozen ones frozen; hooks are lost.
    ///
    /// ```
    /// # use models::{Forward, Module, mlp};
    /// # use autograd::Var;
    /// # use device::{DType, Device, Result};
    /// # fn main() -> Result<()> {
    /// # let dev = Device::cpu();
    /// let mut model = mlp(&[4, 8, 2], 7, &dev)?;
    /// model.to_dtype(DType::BF16)?;
    /// let x = Var::constant(tensor::Tensor::ones(&[3, 4], DType::BF16, &dev)?);
    /// assert_eq!(model.forward(&x)?.dtype(), DType::BF16);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the type is a float; `InvalidArgument` with the type of a part that writes [`parts`](Module::parts)
    /// by hand without [`parts_mut`](Module::parts_mut), and of an `Arc` that others have, too; `OutOfMemory`. Nothing has changed then.
    fn to_dtype(&mut self, dtype: DType) -> Result<()> {
        const OP: &str = "Module::to_dtype";
        dtype.require_float(OP)?;
        convert(OP, self, &|tensor, is_parameter| match tensor.dtype().is_float() {
            true => tensor.to_dtype(if is_parameter { dtype } else { dtype.compute_dtype() }),
            false => Ok(tensor.clone()),
        })
    }

    /// Copies the parameters and buffers to another device. As for [`to_dtype`](Module::to_dtype), the parameters are new ones.
    ///
    /// # Errors
    /// As for [`to_dtype`](Module::to_dtype), and what [`Tensor::to_device`] returns.
    fn to_device(&mut self, device: &Device) -> Result<()> {
        convert("Module::to_device", self, &|tensor, _| tensor.to_device(device))
    }

    /// Switches between training (`true`, the state of a new module) and evaluation.
    ///
    /// Only layers such as [`Dropout`](crate::Dropout) listen, by a part of type [`Training`]. The switch is shared by all
    /// threads that use the module: set it between steps, not while a lane runs.
    fn set_training(&self, training: bool) {
        let mut parts = Parts::default();
        self.parts(&mut parts);
        for (_, part) in parts.list {
            if let ModulePart::Child(module) = part {
                module.set_training(training);
            }
        }
    }
}

/// A module that is a function of one value, such as a layer.
pub trait Forward: Module {
    /// The module's value at `input`, recorded on the tape of the current stream.
    ///
    /// # Errors
    /// Whatever its ops answer; most often `ShapeMismatch` or `DTypeMismatch` for an input that does not fit.
    fn forward(&self, input: &Var) -> Result<Var>;

    /// The activation that the module is; a layer before it in a [`Sequential`](crate::Sequential) may apply it.
    #[doc(hidden)]
    fn activation(&self) -> Activation {
        Activation::None
    }

    /// The activation of the module's value at `input`, where the module applies it in its own command. The bits are those of
    /// separate commands, but for [`Linear`](crate::Linear) on CUDA.
    #[doc(hidden)]
    fn activated(&self, input: &Var, activation: Activation) -> Option<Result<Var>> {
        let _ = (input, activation);
        None
    }

    /// Whether errors are to name the call of the model rather than the line within `forward`, as for layers of the library.
    #[doc(hidden)]
    fn is_located(&self) -> bool {
        false
    }
}

/// The list that [`Module::parts`] fills in.
#[derive(Default)]
pub struct Parts<'a> {
    list: Vec<(String, ModulePart<'a>)>,
}

enum ModulePart<'a> {
    Parameter(&'a Var),
    Buffer(&'a Tensor),
    Child(&'a dyn Module),
}

impl<'a> Parts<'a> {
    /// Adds a parameter that the module holds itself.
    pub fn parameter(&mut self, name: impl Into<String>, parameter: &'a Var) {
        self.list.push((name.into(), ModulePart::Parameter(parameter)));
    }

    /// Adds a buffer that the module holds itself, and changes in place only.
    pub fn buffer(&mut self, name: impl Into<String>, buffer: &'a Tensor) {
        self.list.push((name.into(), ModulePart::Buffer(buffer)));
    }

    /// Adds a module inside this one; its parameters' names start with `name` and a dot. Without a name they stay as they
    /// are in the module; a part without one has that of its module.
    pub fn child(&mut self, name: impl Into<String>, module: &'a dyn Module) {
        self.list.push((name.into(), ModulePart::Child(module)));
    }
}

/// What [`Module::parts_mut`] hands its parts to.
pub struct PartsMut<'a> {
    /// What takes the place of a parameter or buffer, if it is replaced.
    replace: &'a dyn Fn(&Tensor) -> Option<Var>,
    /// The first type that does not hand out its parts.
    refused: Option<&'static str>,
}

/// Converts every parameter and buffer, and then replaces all of them.
fn convert<M: Module + ?Sized>(
    op: &'static str,
    module: &mut M,
    to: &dyn Fn(&Tensor, bool) -> Result<Tensor>,
) -> Result<()> {
    let mut dry = PartsMut { replace: &|_| None, refused: None };
    module.parts_mut(&mut dry);
    if let Some(refused) = dry.refused {
        let expected = "made of modules that have `parts_mut` and are in no shared `Arc`";
        return Err(Error::invalid(op, "module", expected, refused));
    }
    let State { parameters, buffers, .. } = state_of(module);
    let parameter = |(_, old): (String, Var)| -> Result<(Tensor, Var)> {
        let value = to(old.value(), true)?;
        let new = if old.is_leaf() { Var::leaf(value) } else { Var::constant(value) };
        if !old.requires_grad() {
            new.freeze();
        }
        Ok((old.value().clone(), new))
    };
    let buffer = |(_, old): (String, Tensor)| Ok((old.clone(), Var::constant(to(&old, false)?)));
    let parameters = parameters.into_iter().map(parameter).collect::<Result<Vec<_>>>()?;
    let pairs = [parameters, buffers.into_iter().map(buffer).collect::<Result<_>>()?].concat();
    // What is converted to what it was stays the same parameter.
    let replace = |own: &Tensor| {
        let pair = pairs.iter().find(|(old, new)| same_place(old, own) && !same_place(new.value(), own));
        pair.map(|(_, new)| new.clone())
    };
    module.parts_mut(&mut PartsMut { replace: &replace, refused: None });
    Ok(())
}

/// What a module has under names.
#[derive(Default)]
struct State {
    parameters: Vec<(String, Var)>,
    buffers: Vec<(String, Tensor)>,
    /// Further names of parameters and buffers that several modules share, with the first one.
    aliases: Vec<[String; 2]>,
}

fn state_of<M: Module + ?Sized>(module: &M) -> State {
    let mut found = State::default();
    let mut parts = Parts::default();
    module.parts(&mut parts);
    collect(parts, "", &mut found);
    found
}

/// Further names of what several modules share, with the first one.
pub(crate) fn aliases(module: &dyn Module) -> Vec<[String; 2]> {
    state_of(module).aliases
}

fn collect(parts: Parts<'_>, prefix: &str, found: &mut State) {
    for (name, part) in parts.list {
        let name = match (prefix, &*name) {
            ("", _) => name,
            (prefix, "") => prefix.to_owned(),
            (prefix, name) => format!("{prefix}.{name}"),
        };
        match part {
            ModulePart::Parameter(var) => {
                match found.parameters.iter().find(|(_, known)| same_parameter(known, var)) {
                    Some((first, _)) => found.aliases.push([name, first.clone()]),
                    None => found.parameters.push((name, var.clone())),
                }
            }
            ModulePart::Buffer(buffer) => {
                match found.buffers.iter().find(|(_, known)| same_place(known, buffer)) {
                    Some((first, _)) => found.aliases.push([name, first.clone()]),
                    None => found.buffers.push((name, buffer.clone())),
                }
            }
            ModulePart::Child(module) => {
                let mut inner = Parts::default();
                module.parts(&mut inner);
                collect(inner, &name, found);
            }
        }
    }
}

/// Whether two handles are the same parameter.
pub(crate) fn same_parameter(a: &Var, b: &Var) -> bool {
    same_place(a.value(), b.value())
}

pub(crate) fn same_place(a: &Tensor, b: &Tensor) -> bool {
    a.same_storage(b) && a.layout() == b.layout()
}

/// A parameter.
impl Module for Var {
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        parts.parameter("", self);
    }

    fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
        if let Some(new) = (parts.replace)(self.value()) {
            *self = new;
        }
    }
}

/// A buffer.
impl Module for Tensor {
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        parts.buffer("", self);
    }

    fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
        if let Some(new) = (parts.replace)(self) {
            *self = new.value().clone();
        }
    }
}

impl<M: Module> Module for Option<M> {
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        if let Some(module) = self {
            parts.child("", module);
        }
    }

    fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
        self.iter_mut().for_each(|module| module.parts_mut(parts));
    }
}

impl<M: Module> Module for Vec<M> {
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        number(self, parts);
    }

    fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
        self.iter_mut().for_each(|module| module.parts_mut(parts));
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        number(self, parts);
    }

    fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
        self.iter_mut().for_each(|module| module.parts_mut(parts));
    }
}

fn number<'a, M: Module>(modules: &'a [M], parts: &mut Parts<'a>) {
    for (number, module) in modules.iter().enumerate() {
        parts.child(number.to_string(), module);
    }
}

macro_rules! tuples {
    ($($($name:ident $at:tt)+;)+) => {
        $(impl<$($name: Module),+> Module for ($($name,)+) {
            fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
                $(parts.child(stringify!($at), &self.$at);)+
            }

            fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
                $(self.$at.parts_mut(parts);)+
            }
        })+
    };
}

tuples! {
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
}

macro_rules! pointers {
    ($($pointer:ident |$own:ident| $inner:expr;)+) => {
        $(
            impl<M: Module + ?Sized> Module for $pointer<M> {
                fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
                    (**self).parts(parts);
                }
                fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
                    let $own = self;
                    match $inner {
                        Some(module) => module.parts_mut(parts),
                        None => _ = parts.refused.get_or_insert(std::any::type_name::<Self>()),
                    }
                }
                fn set_training(&self, training: bool) {
                    (**self).set_training(training);
                }
            }

            impl<M: Forward + ?Sized> Forward for $pointer<M> {
                #[track_caller]
                fn forward(&self, input: &Var) -> Result<Var> {
                    // A `dyn` module does not know its caller. Nor does a closure.
                    let _at = if self.is_located() { Some(AtCaller::enter()) } else { None };
                    (**self).forward(input)
                }
                fn activation(&self) -> Activation {
                    (**self).activation()
                }
                fn activated(&self, input: &Var, activation: Activation) -> Option<Result<Var>> {
                    (**self).activated(input, activation)
                }
                fn is_located(&self) -> bool {
                    (**self).is_located()
                }
            }
        )+
    };
}

pointers! {
    Box |own| Some(&mut **own);
    Arc |own| Arc::get_mut(own);
}

/// Whether a module is in training: a part of a layer that does something else in evaluation, without parameters.
#[derive(Debug)]
pub struct Training(AtomicBool);

impl Training {
    /// Whether the module is in training, as every new one is.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for Training {
    fn default() -> Self {
        Training(AtomicBool::new(true))
    }
}

impl Module for Training {
    fn parts<'a>(&'a self, _: &mut Parts<'a>) {}

    fn parts_mut(&mut self, _: &mut PartsMut<'_>) {}

    fn set_training(&self, training: bool) {
        self.0.store(training, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
