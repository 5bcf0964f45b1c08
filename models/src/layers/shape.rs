//! Layers that change shapes only.

use autograd::Var;
use device::{Error, Result};

use crate::{Forward, Module};

/// Joins all axes but the first: `[n, ...] -> [n, product of the rest]`.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Flatten;

#[derive::located]
impl Forward for Flatten {
    fn forward(&self, input: &Var) -> Result<Var> {
        let rows = input.shape().first().copied().unwrap_or(1);
        let width = input.shape().iter().skip(1).product();
        input.reshape(&[rows, width])
    }
}

/// Cuts the second axis into several: `[n, product of the shape] -> [n, shape..]`, such as rows of pixels into images.
#[derive(Clone, Debug, Module)]
pub struct Unflatten(#[module(skip)] pub Vec<usize>);

#[derive::located]
impl Forward for Unflatten {
    fn forward(&self, input: &Var) -> Result<Var> {
        let (Some(&rows), 2) = (input.shape().first(), input.shape().len()) else {
            let value = format_args!("shape {:?}", input.shape());
            return Err(Error::invalid("unflatten", "input", "of rank 2", value));
        };
        let mut shape = vec![rows];
        shape.extend_from_slice(&self.0);
        input.reshape(&shape)
    }
}
