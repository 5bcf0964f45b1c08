//! The maths of streamgrad on raw views, one launcher for each kernel.
//!
//! A launcher takes a [`Stream`](device::Stream), [`View`]s of the operands, and a view of the output, which the
//! caller has allocated with the right shape and type. It checks them and launches one command; it never allocates
//! device memory. Everything is asynchronous and ordered by the buffers that it uses.
//!
//! Results are the same, bit for bit, for contiguous and strided operands, for any number of threads and, in F32
//! elementwise functions, on every instruction set; the F64 functions are those of the platform's maths library. The
//! payload and the sign of a NaN are not specified.
//!
//! BF16 and F16 are computed in F32, sums and all, and each result is rounded once, to nearest even. Results that an op
//! keeps for its gradient, such as the statistics of a norm, are F32 then. Warps, blurs and optimizer steps do not take
//! them.
//!
//! On a CUDA device each launcher enqueues a kernel of `cuda/` instead. There, too, results depend on nothing but the
//! operands' elements; only products by BLAS may round differently for another storage. Integers, random integers,
//! `uniform`, `dropout`, `kept_weights`, `cumsum`, sums at indices and over bags, warps, blurs and optimizer steps are those of the CPU, bit for bit; other results may differ
//! from the CPU's in the last bits, as functions and the order of sums are the device's own.
//!
//! ```
//! use kernels::{Layout, broadcast_shapes};
//! let row = Layout::contiguous(&[3]);
//! let shape = broadcast_shapes("add", &[2, 3], row.shape())?;
//! let rows = row.expand("add", &shape)?;
//! assert_eq!((rows.shape(), rows.strides()), (&[2, 3][..], &[0, 1][..]));
//! # Ok::<(), device::Error>(())
//! ```

mod activation;
mod attention;
mod batch_norm;
mod chain;
mod clip;
mod command;
mod conv;
mod copy;
mod cpu;
mod cuda;
mod custom;
mod distribution;
mod elementwise;
mod embedding_bag;
mod functions;
mod fuse;
mod geometry;
mod half;
mod image;
mod index;
mod indexed;
pub mod layout;
mod loops;
mod loss;
mod matmul;
mod matrices;
mod normalize;
mod norms;
mod optim;
mod order;
mod par;
mod pool;
mod random;
mod reduce;
mod reduction;
mod rule_step;
mod rules;
mod scores;
mod sequence;
mod softmax;
#[cfg(test)]
mod testing;
mod view;
mod window;

pub use activation::Activation;
pub use attention::{
    AttentionGrads, AttentionInput, AttentionResult, attention, attention_grad, kept_weights,
};
pub use batch_norm::{ChannelNorm, batch_norm, batch_norm_grad, batch_norm_workspace, follow_statistics};
pub use clip::{TotalNorm, scale_all, total_norm, unscale_all};
pub use conv::{Conv2d, ConvPass, conv2d, conv2d_input_grad, conv2d_wants_channels_last, conv2d_weight_grad};
pub use copy::{Scalar, copy, fill};
pub use cuda::libraries::convolutions;
pub use cuda::parts::join_parts;
pub use cuda::preload;
pub use custom::{CustomKernel, KernelLaunch, custom};
pub use device::cuda::{Arg, Grid, Program};
pub use distribution::{Dropout, RandomKey};
pub use elementwise::{binary, binary_grad, compare, logical_not, unary, unary_grad, where_cond};
pub use embedding_bag::{
    Bags, embedding_bag, embedding_bag_grad, embedding_bag_grad_workspace, embedding_bag_weights_grad,
};
pub use functions::{BinaryGradOp, BinaryOp, CompareOp, Saves, UnaryOp};
pub use fuse::fuse;
pub use geometry::{Means, Sampling};
pub use image::{blur, warp};
pub use index::{IndexSums, gather, index_add, index_select, scatter_add};
pub use layout::{Dims, Layout, Strides, View, broadcast_shapes, normalize_axes, normalize_axis};
pub use loss::{cross_entropy, cross_entropy_grad};
pub use matmul::{Accumulate, MatrixProduct, linear, matmul};
pub use normalize::{NormGrads, NormInput, normalize, normalize_grad, normalize_workspace};
pub use norms::{NormRows, norm_parts};
pub use optim::{Update, optimizer_step};
pub use order::{argsort, argsort_workspace};
pub use pool::{
    avg_pool2d, avg_pool2d_grad, max_pool2d, max_pool2d_grad, max_pool2d_index_dtype, max_pool2d_pick,
};
pub use random::{dropout, normal, philox, randint, uniform};
pub use reduce::{reduce, reduce_workspace};
pub use reduction::{Extreme, ReduceOp, Reduction};
pub use rule_step::RuleStep;
pub use rules::{Accumulated, Rule, RuleValue, StepNumbers};
pub use scores::AttentionKind;
pub use sequence::{Rotation, cumsum, cumsum_workspace, rotary};
pub use softmax::{log_softmax, log_softmax_grad, softmax, softmax_grad};
pub use window::Window;
