//! Which commands of a plan come before which.

/// For each command, the set of those that come before it: a row of bits.
pub(super) struct Reach {
    words: usize,
    bits: Vec<u64>,
}

impl Reach {
    pub(super) fn new(commands: usize) -> Reach {
        let words = commands.div_ceil(64);
        Reach { words, bits: vec![0; words * commands] }
    }

    /// Whether `earlier` comes before `later`.
    pub(super) fn has(&self, earlier: usize, later: usize) -> bool {
        self.bits[later * self.words + earlier / 64] >> (earlier % 64) & 1 == 1
    }

    /// `earlier`, and what comes before it, comes before `later`, a command after it in the program.
    pub(super) fn add(&mut self, earlier: usize, later: usize) {
        let (before, from) = self.bits.split_at_mut(later * self.words);
        for (to, more) in from.iter_mut().zip(&before[earlier * self.words..(earlier + 1) * self.words]) {
            *to |= more;
        }
        from[earlier / 64] |= 1 << (earlier % 64);
    }
}
