//! Order statistics of measured times.

/// Median, tenth and ninetieth percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// Half of the values are below.
    pub median: f64,
    /// A tenth of the values is below.
    pub p10: f64,
    /// Nine tenths of the values are below.
    pub p90: f64,
}

impl Quantiles {
    /// Of some values, with linear interpolation between neighbours; zeros if there are none.
    ///
    /// ```
    /// let q = profile::Quantiles::of([3.0, 1.0, 2.0]);
    /// assert_eq!((q.median, q.p10, q.p90), (2.0, 1.2, 2.8));
    /// ```
    pub fn of(values: impl IntoIterator<Item = f64>) -> Quantiles {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * sorted.len().saturating_sub(1) as f64;
            let (low, high) = (sorted.get(place.floor() as usize), sorted.get(place.ceil() as usize));
            match (low, high) {
                (Some(low), Some(high)) => low + (high - low) * place.fract(),
                _ => 0.0,
            }
        };
        Quantiles { median: at(0.5), p10: at(0.1), p90: at(0.9) }
    }
}

/// The middle one of some values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Quantiles::of(values).median
}
