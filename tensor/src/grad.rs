//! Gradients that are kernels of their own, beside those that are made of other ops. The rules of `autograd` call them.

pub use crate::batch_norm::batch_norm_grad as batch_norm;
pub use crate::conv::{conv2d_input_grad as conv2d_input, conv2d_weight_grad as conv2d_weight};
pub use crate::elementwise::binary_grad as binary;
pub use crate::embedding_bag::{
    embedding_bag_grad as embedding_bag, embedding_bag_weights_grad as embedding_bag_weights,
};
pub use crate::index::{gather_grad as gather, index_select_grad as index_select};
pub use crate::loss::cross_entropy_grad as cross_entropy;
pub use crate::pool::{
    avg_pool2d_grad as avg_pool2d, max_pool2d_grad as max_pool2d, max_pool2d_pick, resized_grad as resized,
};
pub use crate::reduce::{log_softmax_grad as log_softmax, softmax_grad as softmax};
pub use crate::unary::unary_grad as unary;
pub use kernels::Means;
