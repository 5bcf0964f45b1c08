//! Properties of the allocator over modelled streams, whose progress an adversary chooses. Tests are named after the
//! invariants of the allocator that they are for.

mod directed;
mod memory;
mod model;
mod order;
mod programs;
