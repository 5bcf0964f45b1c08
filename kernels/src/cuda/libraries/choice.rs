//! Which of the library's algorithms makes a product. Its first choice suits products that fill the device; for smaller ones,
//! whose time is that of one tile after the other steps of its sum, it often splits sums that are short, or leaves long ones
//! whole.

/// What the library says of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Traits {
    /// The family of kernels.
    pub(super) id: i32,
    /// A value of `cublasLtMatmulTile_t`.
    pub(super) tile: i32,
    /// Into how many parts sums are cut, which a second kernel adds.
    pub(super) parts: i32,
    /// How often the device is filled.
    pub(super) waves: f32,
}

/// Rows and columns of the tiles from `CUBLASLT_MATMUL_TILE_16x32`, which is 8, on.
const TILES: [(u32, u32); 18] = [
    (16, 32),
    (32, 16),
    (64, 8),
    (32, 32),
    (32, 64),
    (64, 32),
    (32, 128),
    (64, 64),
    (128, 32),
    (64, 128),
    (128, 64),
    (64, 256),
    (128, 128),
    (256, 64),
    (64, 512),
    (128, 256),
    (256, 128),
    (512, 64),
];
const FIRST_TILE: i32 = 8;

/// The family whose second kernel takes little more for each further part.
const MANY_PARTS: i32 = 20;

/// The version of the library whose positive parts were looked at, 13.1, and the families that keep NaN.
const KNOWN: usize = 1301;
const KEEP_NAN: [i32; 13] = [11, 12, 13, 14, 16, 22, 41, 42, 43, 55, 56, 63, 66];

impl Traits {
    /// Whether the positive part of NaN is NaN, where a library of this version takes it. So it is for sums in parts, which a second
    /// kernel adds; without parts the families 20, 21, 23 and 24 make it 0 (120,000 products of all types on an H200; other devices were
    /// not looked at).
    pub(super) fn keeps_nan(&self, version: usize) -> bool {
        version == KNOWN && (self.parts > 1 || KEEP_NAN.contains(&self.id))
    }

    /// About how many microseconds an H200 needs for `m` by `n` sums of `k` products in F32, if that fills no more than the
    /// device (23 forms with 150 algorithms, `cublasLt` 13.1: the mean error is a tenth). `None` for other kernels.
    fn expected(&self, [m, n, k]: [usize; 3]) -> Option<f64> {
        let &(rows, columns) = TILES.get(usize::try_from(self.tile - FIRST_TILE).ok()?)?;
        let parts = f64::from(self.parts.max(1));
        let side = (f64::from(rows * columns) / 1024.0).sqrt();
        let joined = match self.parts {
            ..=1 => 0.0,
            _ if self.id == MANY_PARTS => 2.4 + 0.03 * parts,
            _ => 1.3 + 0.6 * parts,
        };
        let alone = 1.8 + 0.3 * side + 0.0184 * side * (k as f64 / parts).ceil();
        // Tiles that share a multiprocessor share its arithmetic, which small ones use the less well: 23, 36 and 41 TFLOP/s.
        let rate = if side < 1.2 { 23e6 } else { 41e6_f64.min(25.5e6 * side) };
        let shared = 2.0 * (m * n) as f64 * k as f64 / rate;
        Some(alone.max(shared) + joined)
    }
}

/// The number of the algorithm for a product in F32 of these sizes, `m`, `n` and `k`: the library's first unless another one
/// is expected to be faster by more than a tenth.
pub(super) fn choose(all: &[Traits], sizes: [usize; 3]) -> usize {
    let small = |traits: &Traits| traits.waves <= 1.0;
    let expected =
        |at: usize| all.get(at).filter(|traits| small(traits)).and_then(|traits| traits.expected(sizes));
    let Some(first) = expected(0) else { return 0 };
    let others = (1..all.len()).filter_map(|at| Some((at, expected(at)?)));
    match others.min_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((best, time)) if time < 0.9 * first => best,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: i32, tile: i32, parts: i32) -> Traits {
        Traits { id, tile, parts, waves: 0.1 }
    }

    /// What was measured, with the library's own order of algorithms.
    #[test]
    fn short_sums_stay_whole_and_long_ones_are_cut() {
        // [256, 64] x [64, 128]: 6.75, 3.43 and 5.69 us.
        assert_eq!(choose(&[of(20, 18, 33), of(55, 11, 1), of(20, 15, 16)], [256, 128, 64]), 1);
        // [16, 150] x [150, 100]: 52, 5.8 and 4.9 us.
        assert_eq!(choose(&[of(55, 16, 264), of(20, 16, 132), of(20, 15, 33)], [16, 100, 150]), 2);
        // [32, 400] x [400, 120]: 7.8, 9.3 and 5.9 us.
        assert_eq!(choose(&[of(20, 15, 4), of(55, 11, 1), of(20, 15, 12)], [32, 120, 400]), 2);
        // [256, 256] x [256, 10]: 5.9 and 6.7 us.
        assert_eq!(choose(&[of(20, 16, 18), of(55, 11, 1)], [256, 10, 256]), 0);
    }

    #[test]
    fn tiles_that_share_a_multiprocessor_take_turns() {
        // [768, 768] x [768, 4096]: 131 and 209 us.
        assert_eq!(choose(&[of(55, 20, 1), of(55, 11, 1)], [768, 4096, 768]), 0);
        // [768, 4096] x [4096, 768]: 105 us, and 120 with tiles of 64 by 64 and ten parts.
        assert_eq!(choose(&[of(20, 24, 7), of(55, 15, 10)], [768, 768, 4096]), 0);
    }

    #[test]
    fn positive_parts_are_the_librarys_where_they_keep_nan() {
        let keep = |id, parts, version| of(id, 15, parts).keeps_nan(version);
        assert_eq!([20, 21, 23, 24, 99].map(|id| keep(id, 1, KNOWN)), [false; 5]);
        assert!(keep(55, 1, KNOWN) && keep(20, 2, KNOWN));
        assert!(!keep(55, 1, KNOWN + 1) && !keep(20, 2, KNOWN - 1));
    }

    #[test]
    fn the_librarys_choice_stays_where_nothing_is_known() {
        let large = Traits { waves: 1.9, ..of(55, 18, 6) };
        let sizes = [256, 128, 64];
        assert_eq!(choose(&[large, of(55, 11, 1)], sizes), 0);
        assert_eq!(choose(&[of(11, 0, 1), of(55, 11, 1)], sizes), 0);
        assert_eq!((choose(&[], sizes), choose(&[of(55, 99, 1)], sizes)), (0, 0));
        // Another one that is known is no reason.
        assert_eq!(choose(&[of(55, 11, 1), of(55, -4, 1), of(55, 18, 33)], sizes), 0);
    }
}
