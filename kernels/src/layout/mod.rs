//! Where the elements of tensors lie in their buffers: layouts, views of buffers, and loops over several layouts.

pub(crate) mod strided;

pub(crate) use crate::loops::{LoopAxis, Loops};
pub use crate::view::View;
pub(crate) use crate::view::{Dst, Src};
pub use strided::*;
