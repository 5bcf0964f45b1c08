//! Random numbers on the host: shuffles and the keys of batches. Random ops draw theirs from `tensor::Generator`.

pub use device::SplitMix;

/// One well-mixed number out of several; order matters.
pub fn mix(values: &[u64]) -> u64 {
    values.iter().fold(0, |state, &value| device::mix(state ^ value))
}

/// `0..len` in an order that depends on the seed alone (Fisher-Yates).
pub fn permutation(len: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    let mut random = SplitMix(seed);
    for last in (1..len).rev() {
        order.swap(last, random.below(last + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_permutations_and_keyed() {
        for len in [0, 1, 2, 7, 1000] {
            let mut order = permutation(len, 3);
            assert_eq!(order, permutation(len, 3));
            order.sort_unstable();
            assert!(order.iter().copied().eq(0..len));
        }
        assert_ne!(permutation(1000, 3), permutation(1000, 4));
    }

    #[test]
    fn every_position_is_reached_about_equally() {
        let mut counts = [0usize; 5];
        for seed in 0..5000 {
            counts[permutation(5, mix(&[seed]))[0]] += 1;
        }
        assert!(counts.iter().all(|&c| (850..1150).contains(&c)), "{counts:?}");
    }

    #[test]
    fn splitmix_gives_the_published_numbers() {
        // First outputs of the reference implementation for the state 1234567.
        let mut random = SplitMix(1_234_567);
        assert_eq!(random.next_bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_bits(), 3_203_168_211_198_807_973);
    }
}
