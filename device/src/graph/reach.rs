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

    /// Those that come before `later`.
    pub(super) fn before(&self, later: usize) -> impl Iterator<Item = usize> + '_ {
        let row = &self.bits[later * self.words..(later + 1) * self.words];
        let places = |(at, &word): (usize, &u64)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        };
        row.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(places)
    }

    /// `one` and `other` are one command from now on, which is called `one`: what comes before either comes before whatever
    /// came after either.
    pub(super) fn join(&mut self, one: usize, other: usize) {
        let words = self.words;
        let mut row: Vec<u64> =
            (0..words).map(|at| self.bits[one * words + at] | self.bits[other * words + at]).collect();
        [one, other].into_iter().for_each(|own| row[own / 64] &= !(1 << (own % 64)));
        self.bits[one * words..(one + 1) * words].copy_from_slice(&row);
        row[one / 64] |= 1 << (one % 64);
        for later in 0..self.bits.len() / words {
            if later != one && (self.has(one, later) || self.has(other, later)) {
                let to = &mut self.bits[later * words..(later + 1) * words];
                to.iter_mut().zip(&row).for_each(|(to, more)| *to |= more);
                to[other / 64] &= !(1 << (other % 64));
            }
        }
    }
}
