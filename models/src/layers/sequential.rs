//! Layers one after another.

use autograd::Var;
use autograd::ops::fused::Activation;
use device::{AtCaller, Device, Error, Result};
use tensor::RandomKey;

use crate::{Forward, Linear, Module, Relu};

/// Feeds each module's output to the next; parameters are named by position, as in `0.weight`. A layer and a
/// [`Relu`](crate::Relu) behind it share a command where the layer has one.
///
/// ```
/// use models::{Linear, Module, Relu, Sequential};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let model = Sequential::new().push(Linear::new(4, 8, &dev)?).push(Relu).push(Linear::new(8, 2, &dev)?);
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
/// # Ok(())
/// # }
/// ```
#[derive(Default, Module)]
pub struct Sequential {
    #[module(flatten)]
    modules: Vec<Box<dyn Forward>>,
}

impl Sequential {
    /// No modules yet: the identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a module at the end.
    #[must_use]
    pub fn push(mut self, module: impl Forward + 'static) -> Self {
        self.modules.push(Box::new(module));
        self
    }

    /// The number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Whether there are no modules.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }
}

/// Modules of one type, such as a stack of blocks.
impl<M: Forward + 'static> FromIterator<M> for Sequential {
    fn from_iter<I: IntoIterator<Item = M>>(modules: I) -> Self {
        modules.into_iter().fold(Sequential::new(), Sequential::push)
    }
}

/// A [`Sequential`](crate::Sequential) of modules that may have different types.
///
/// ```
/// use models::{Linear, Relu, Sequential, sequential};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let block = || Ok(sequential![Linear::new(8, 8, &dev)?, Relu]);
/// let blocks = (0..3).map(|_| block()).collect::<device::Result<Sequential>>()?;
/// let model = sequential![Linear::new(4, 8, &dev)?, Relu, blocks, Linear::new(8, 2, &dev)?];
/// assert_eq!(model.len(), 4);
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! sequential {
    ($($module:expr),* $(,)?) => { $crate::Sequential::new()$(.push($module))* };
}

#[derive::located]
impl Forward for Sequential {
    fn forward(&self, input: &Var) -> Result<Var> {
        let mut modules = self.modules.iter().enumerate().peekable();
        let mut value = input.clone();
        while let Some((at, module)) = modules.next() {
            let activation = modules.peek().map_or(Activation::None, |(_, next)| next.activation());
            let fused = match activation {
                Activation::None => None,
                activation => module.activated(&value, activation),
            };
            let made = match fused {
                Some(made) => {
                    modules.next();
                    made
                }
                None => {
                    let _user = (!module.is_located()).then(AtCaller::leave);
                    module.forward(&value)
                }
            };
            value = made.map_err(|error| error.in_module(at))?;
        }
        Ok(value)
    }
}

/// `y = x + module(x)`, a residual connection. Parameters have the names that they have in the module.
///
/// ```
/// use models::{LayerNorm, Linear, Module, Residual, sequential};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let block = Residual(sequential![LayerNorm::new(&[8], &dev)?, Linear::new(8, 8, &dev)?]);
/// assert_eq!(block.named_parameters()[2].0, "1.weight");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Module)]
pub struct Residual<M: Module>(#[module(flatten)] pub M);

#[derive::located]
impl<M: Forward> Forward for Residual<M> {
    fn forward(&self, input: &Var) -> Result<Var> {
        input + self.0.forward(input)
    }
}

/// Linear layers of the given sizes with a ReLU between each two, keyed by `seed`.
///
/// Shapes: `[n, sizes[0]] -> [n, sizes[last]]`.
///
/// ```
/// use models::{Module, mlp};
/// # fn main() -> device::Result<()> {
/// let model = mlp(&[784, 256, 256, 10], 7, &device::Device::cpu())?;
/// assert_eq!(model.parameters().len(), 6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` for fewer than two sizes or a size of 0, `OutOfMemory`.
#[derive::located]
pub fn mlp(sizes: &[usize], seed: u64, device: &Device) -> Result<Sequential> {
    let is_valid = sizes.len() >= 2 && !sizes.contains(&0);
    Error::require(is_valid, "mlp", "sizes", "at least two, all positive", format_args!("{sizes:?}"))?;
    let mut model = Sequential::new();
    for (layer, pair) in sizes.windows(2).enumerate() {
        if layer > 0 {
            model = model.push(Relu);
        }
        model = model.push(Linear::keyed(pair[0], pair[1], RandomKey { seed, op: layer as u64 }, device)?);
    }
    Ok(model)
}
