//! Chance, from a seed.

/// The same numbers for the same seed, on every machine.
pub(crate) struct Chance(u64);

impl Chance {
    /// No two of the first many numbers begin alike.
    pub(crate) fn of_number(number: u64) -> Chance {
        Chance((number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % most as u64).unwrap()
    }

    pub(crate) fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}
