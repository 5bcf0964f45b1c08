//! What a step would take if something were otherwise.
