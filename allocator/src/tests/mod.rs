//! Properties of the allocator over modelled streams, whose progress an adversary chooses.

mod directed;
mod model;
mod properties;
