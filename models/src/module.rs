//! What a layer or a model has to say about itself.

use autograd::Var;
use device::Result;
use tensor::Tensor;

/// A function with parameters: a layer, or a model made of layers.
///
/// Two methods describe it: [`forward`](Module::forward) computes, [`parts`](Module::parts) names the
/// parameters and the layers inside. All else follows from them. A module is shared by reference between
/// lanes, so it is `Send + Sync` and `forward` takes `&self`.
///
/// ```
/// use models::{Linear, Module, Parts, Relu};
/// use autograd::Var;
/// use device::{Device, Result};
///
/// /// `x + up(relu(down(x)))`
/// struct Residual { down: Linear, up: Linear }
///
/// impl Module for Residual {
///     fn forward(&self, input: &Var) -> Result<Var> {
///         let hidden = Relu.forward(&self.down.forward(input)?)?;
///         input.add(&self.up.forward(&hidden)?)
///     }
///     fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
///         parts.child("down", &self.down);
///         parts.child("up", &self.up);
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let dev = Device::cpu();
/// let block = Residual { down: Linear::new(8, 2, &dev)?, up: Linear::new(2, 8, &dev)? };
/// let names: Vec<String> = block.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["down.weight", "down.bias", "up.weight", "up.bias"]);
/// # Ok(())
/// # }
/// ```
pub trait Module: Send + Sync {
    /// The module's value at `input`, recorded on the tape of the current stream.
    ///
    /// # Errors
    /// Whatever its ops answer; most often `ShapeMismatch` or `DTypeMismatch` for an input that does not fit.
    fn forward(&self, input: &Var) -> Result<Var>;

    /// Names the module's own parameters and buffers and the modules inside it, in a fixed order.
    ///
    /// The default is a module without parameters.
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        let _ = parts;
    }

    /// Every parameter under its dotted name, as in `layers.0.weight`.
    ///
    /// A parameter that two modules share is listed once, under the first name.
    fn named_parameters(&self) -> Vec<(String, Var)> {
        state_of(self).0
    }

    /// Every buffer under its dotted name: tensors that a module keeps beside its parameters, such as the running
    /// statistics of [`BatchNorm2d`](crate::BatchNorm2d). They have no gradient, and are saved with the parameters.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        state_of(self).1
    }

    /// Every parameter, in the order of [`named_parameters`](Module::named_parameters).
    fn parameters(&self) -> Vec<Var> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// Switches between training (`true`, the state of a new module) and evaluation.
    ///
    /// Only layers such as [`Dropout`](crate::Dropout) listen. The switch is shared by all threads that use
    /// the module: set it between steps, not while a lane runs.
    fn set_training(&self, training: bool) {
        let mut parts = Parts::default();
        self.parts(&mut parts);
        for (_, part) in parts.list {
            if let Part::Child(module) = part {
                module.set_training(training);
            }
        }
    }
}

/// The list that [`Module::parts`] fills in.
#[derive(Default)]
pub struct Parts<'a> {
    list: Vec<(String, Part<'a>)>,
}

enum Part<'a> {
    Parameter(&'a Var),
    Buffer(&'a Tensor),
    Child(&'a dyn Module),
}

impl<'a> Parts<'a> {
    /// Adds a parameter that the module holds itself.
    pub fn parameter(&mut self, name: impl Into<String>, parameter: &'a Var) {
        self.list.push((name.into(), Part::Parameter(parameter)));
    }

    /// Adds a buffer that the module holds itself, and changes in place only.
    pub fn buffer(&mut self, name: impl Into<String>, buffer: &'a Tensor) {
        self.list.push((name.into(), Part::Buffer(buffer)));
    }

    /// Adds a module inside this one; its parameters' names start with `name` and a dot.
    pub fn child(&mut self, name: impl Into<String>, module: &'a dyn Module) {
        self.list.push((name.into(), Part::Child(module)));
    }
}

/// Parameters and buffers under their names.
type State = (Vec<(String, Var)>, Vec<(String, Tensor)>);

fn state_of<M: Module + ?Sized>(module: &M) -> State {
    let mut found = State::default();
    let mut parts = Parts::default();
    module.parts(&mut parts);
    collect(parts, "", &mut found);
    found
}

fn collect(parts: Parts<'_>, prefix: &str, found: &mut State) {
    for (name, part) in parts.list {
        let name = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match part {
            Part::Parameter(var) => {
                if !found.0.iter().any(|(_, known)| same_parameter(known, var)) {
                    found.0.push((name, var.clone()));
                }
            }
            Part::Buffer(buffer) => {
                if !found.1.iter().any(|(_, known)| same_place(known, buffer)) {
                    found.1.push((name, buffer.clone()));
                }
            }
            Part::Child(module) => {
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

fn same_place(a: &Tensor, b: &Tensor) -> bool {
    a.same_storage(b) && a.layout() == b.layout()
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn forward(&self, input: &Var) -> Result<Var> {
        (**self).forward(input)
    }
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        (**self).parts(parts);
    }
    fn set_training(&self, training: bool) {
        (**self).set_training(training);
    }
}

impl<M: Module + ?Sized> Module for std::sync::Arc<M> {
    fn forward(&self, input: &Var) -> Result<Var> {
        (**self).forward(input)
    }
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        (**self).parts(parts);
    }
    fn set_training(&self, training: bool) {
        (**self).set_training(training);
    }
}
