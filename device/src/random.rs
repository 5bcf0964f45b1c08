//! Random numbers of the host: schedules, shuffles, and seeds that follow from others.

/// The next number of SplitMix64 after `state`, which mixes its bits (Steele, Lea and Flood, OOPSLA 2014).
pub fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 with its state, which is also its seed.
#[derive(Clone, Debug, Default)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// A number of 64 random bits.
    pub fn next_bits(&mut self) -> u64 {
        let next = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        next
    }

    /// A number in `0..bound`; the bias of the multiplication is below `bound / 2^64`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_bits()) * bound as u128) >> 64) as usize
    }

    /// A number in `0..1`, a multiple of `2^-53`.
    pub fn unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
