//! Random numbers from a seed.
#![allow(dead_code, reason = "every test program uses some of them")]

/// Gives the same numbers for the same seed, on every machine.
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    /// Seeds that are near to each other give sequences that differ from the start.
    pub(crate) fn new(seed: u64) -> SeededRandom {
        SeededRandom((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % most as u64).unwrap()
    }

    pub(crate) fn choose<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}
