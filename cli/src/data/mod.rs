//! Made-up data, with which a model can be trained where there are no others.

mod clicks;
mod images;

pub use clicks::{ClickLog, ClickOptions};
pub use images::Images;
