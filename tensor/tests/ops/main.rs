//! Every op of the tensor crate against a plain reference, and every bad input against its typed error.

mod elementwise;
mod errors;
mod half;
mod index;
mod inplace;
mod matmul;
mod on;
mod promotion;
mod random;
mod reduce;
mod reference;
mod text;
mod transfer;
mod views;
