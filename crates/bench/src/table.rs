//! What was measured, beside what was asked for.

/// Collects lines, and prints each as it comes: the benchmarks take a minute.
#[derive(Default)]
pub(crate) struct Table {
    missed: Vec<String>,
}

impl Table {
    pub(crate) fn title(&mut self, title: &str) {
        println!("\n{title}");
    }

    /// Something that was measured.
    pub(crate) fn row(&mut self, name: &str, measured: &str) {
        println!("  {name:<58} {measured:>22}");
    }

    /// Something that has a target.
    pub(crate) fn target(&mut self, name: &str, measured: &str, target: &str, met: bool) {
        let mark = if met { '✓' } else { '✗' };
        println!("  {name:<58} {measured:>22}   {target:<14} {mark}");
        if !met {
            self.missed.push(format!("{name}: {measured}, wanted {target}"));
        }
    }

    /// What missed its target.
    pub(crate) fn missed(&self) -> &[String] {
        &self.missed
    }
}
