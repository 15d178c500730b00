//! A table of measured figures, printed line by line.

use std::process::ExitCode;

/// Prints figures as they are measured, because a benchmark takes minutes, and remembers which missed their
/// target.
#[derive(Debug, Default)]
pub struct Table {
    missed: Vec<String>,
}

impl Table {
    /// Begins a part of the table.
    pub fn title(&self, title: &str) {
        println!("\n{title}");
    }

    /// A figure without a target.
    pub fn row(&self, name: &str, measured: &str) {
        println!("  {name:<62} {measured:>22}");
    }

    /// A figure with a target, and whether it was met.
    pub fn target(&mut self, name: &str, measured: &str, target: &str, met: bool) {
        let mark = if met { '✓' } else { '✗' };
        println!("  {name:<62} {measured:>22}   {target:<14} {mark}");
        if !met {
            self.missed.push(format!("{name}: {measured}, wanted {target}"));
        }
    }

    /// Prints which targets were missed. With `check`, a missed target fails the program.
    pub fn finish(&self, check: bool) -> ExitCode {
        println!();
        if self.missed.is_empty() {
            println!("every target was met");
            return ExitCode::SUCCESS;
        }
        println!("missed:");
        self.missed.iter().for_each(|line| println!("  {line}"));
        if check { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
