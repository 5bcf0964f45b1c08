//! Order statistics, in one place for every crate that summarises measured times.

/// For each of `shares`, the value below which that share of `values` lies, interpolated linearly between neighbours; 0 for no
/// values. Sorts once.
///
/// ```
/// assert_eq!(device::quantiles([3.0, 1.0, 2.0], [0.5, 0.9]), [2.0, 2.8]);
/// ```
pub fn quantiles<const N: usize>(values: impl IntoIterator<Item = f64>, shares: [f64; N]) -> [f64; N] {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |index: f64| sorted.get(index as usize).copied().unwrap_or(0.0);
    shares.map(|share| {
        let index = share * sorted.len().saturating_sub(1) as f64;
        let (low, high) = (at(index.floor()), at(index.ceil()));
        low + (high - low) * index.fract()
    })
}

/// The middle of `values`; see [`quantiles`].
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let [median] = quantiles(values, [0.5]);
    median
}
