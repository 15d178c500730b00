//! The command line of a benchmark with `harness = false`.

/// What a benchmark was asked to measure.
#[derive(Debug)]
pub struct BenchArguments {
    words: Vec<String>,
}

impl BenchArguments {
    /// Reads the command line. Returns `None` if this is a test run, in which there is nothing to measure.
    ///
    /// `cargo bench` starts the program with `--bench`. `cargo test --benches` starts it without, or with
    /// `--test` or `--list`.
    pub fn of_bench_run() -> Option<BenchArguments> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let has = |word: &str| words.iter().any(|other| other == word);
        (has("--bench") && !has("--test") && !has("--list")).then_some(BenchArguments { words })
    }

    /// Whether a missed target must fail the run: `--check`.
    pub fn check(&self) -> bool {
        self.words.iter().any(|word| word == "--check")
    }

    /// The named parts to measure, in the order of `names`; all of them if none was named.
    pub fn chosen<'n>(&self, names: &'n [&'n str]) -> impl Iterator<Item = &'n str> {
        let named: Vec<&str> =
            names.iter().copied().filter(|name| self.words.iter().any(|word| word == name)).collect();
        let chosen = if named.is_empty() { names.to_vec() } else { named };
        chosen.into_iter()
    }
}
