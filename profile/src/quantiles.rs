//! Order statistics of measured times.

use device::quantiles;

/// Median, tenth and ninetieth percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
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
        let [p10, median, p90] = quantiles(values, [0.1, 0.5, 0.9]);
        Quantiles { median, p10, p90 }
    }
}
