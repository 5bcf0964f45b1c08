//! The activation that a command applies to its results before it stores them.

/// The activation that an op applies to its results in the same command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// None: the results are stored as they are.
    #[default]
    None,
    /// `max(y, 0)`; NaN stays NaN.
    Relu,
}

impl Activation {
    /// Whether it is [`Activation::Relu`].
    #[inline]
    pub fn is_relu(self) -> bool {
        self == Activation::Relu
    }

    /// The op's name: `plain`, or `relu` with a ReLU.
    #[inline]
    pub fn op(self, plain: &'static str, relu: &'static str) -> &'static str {
        if self.is_relu() { relu } else { plain }
    }
}
