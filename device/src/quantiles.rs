//! Order statistics, in one place for every crate that summarises measured times.

/// The value below which `share` of `values` lie, interpolated linearly between neighbours; 0 for no values.
///
/// ```
/// assert_eq!(device::quantile([3.0, 1.0, 2.0], 0.9), 2.8);
/// ```
pub fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let index = share * sorted.len().saturating_sub(1) as f64;
    let at = |index: f64| sorted.get(index as usize).copied().unwrap_or(0.0);
    let (low, high) = (at(index.floor()), at(index.ceil()));
    low + (high - low) * index.fract()
}

/// The middle of `values`; see [`quantile`].
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}
