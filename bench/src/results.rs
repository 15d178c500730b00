//! `bench/results/latest.json`: every repetition of every work.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};

/// The results of one run of the tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The day of the run: `2026-11-18`.
    pub day: String,
    /// `full`, or `quick`: few and short repetitions, which prove little.
    pub mode: Mode,
    /// What a reader must know about the circumstances; may be empty.
    pub note: String,
    /// Repetitions of each work, and how long each lasts.
    pub repetitions: usize,
    /// Milliseconds of one repetition.
    pub lasting_ms: u64,
    /// The machine.
    pub machine: Machine,
    /// The versions of toolchains, servers and libraries.
    pub versions: BTreeMap<String, String>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// How thorough the run was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Enough repetitions to compare.
    Full,
    /// A look: few, short repetitions.
    Quick,
}

/// The facts of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Cores that may be used.
    pub cores: usize,
    /// The model.
    pub processor: String,
    /// Memory.
    pub memory_gb: u64,
    /// The version of Linux.
    pub kernel: String,
    /// The load average of one minute, just before the run. Above 0.5, other work disturbed it.
    pub load_at_start: f64,
    /// Whether the processor was kept out of its idle states.
    pub idle_states_held_off: bool,
}

/// The results of one work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The name of the work.
    pub work: String,
    /// A row for each peer.
    pub rows: Vec<Row>,
}

/// The results of one peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The name of the peer.
    pub peer: String,
    /// Why there are no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_run: Option<String>,
    /// Each figure, once for each repetition. `null` is infinite.
    #[serde(default)]
    pub figures: BTreeMap<String, Vec<Option<f64>>>,
}

impl Row {
    /// A row without figures.
    pub fn not_run(peer: &str, why: impl Into<String>) -> Row {
        Row { peer: peer.to_owned(), not_run: Some(why.into()), figures: BTreeMap::new() }
    }

    /// Adds the figures of one repetition.
    pub fn add(&mut self, figures: &BTreeMap<&'static str, f64>) {
        for (name, value) in figures {
            let value = value.is_finite().then(|| rounded(*value));
            self.figures.entry((*name).to_owned()).or_default().push(value);
        }
    }

    /// The values of a figure, one for each repetition; empty if it was not measured.
    pub fn values(&self, figure: &str) -> Vec<f64> {
        let values = self.figures.get(figure).into_iter().flatten();
        values.map(|value| value.unwrap_or(f64::INFINITY)).collect()
    }
}

impl Results {
    /// The table of a work.
    pub fn table(&self, work: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.work == work)
    }

    /// Reads a file of results.
    ///
    /// # Errors
    /// If there is none, or it has another form.
    pub fn load(path: &Path) -> Result<Results, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes a file of results.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), String> {
        let text = self.to_json()?;
        fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// JSON with one line for each row, so that two runs can be compared line by line.
    fn to_json(&self) -> Result<String, String> {
        let failed = |error: serde_json::Error| error.to_string();
        let empty = Results { tables: Vec::new(), ..self.clone() };
        let head = serde_json::to_string_pretty(&empty).map_err(failed)?;
        let mut tables = Vec::new();
        for table in &self.tables {
            let rows: Result<Vec<String>, String> =
                table.rows.iter().map(|row| serde_json::to_string(row).map_err(failed)).collect();
            let work = serde_json::to_string(&table.work).map_err(failed)?;
            tables.push(format!(
                "    {{\"work\": {work}, \"rows\": [\n      {}\n    ]}}",
                rows?.join(",\n      ")
            ));
        }
        let list =
            if tables.is_empty() { "[]".to_owned() } else { format!("[\n{}\n  ]", tables.join(",\n")) };
        Ok(format!("{}\n", head.replace("\"tables\": []", &format!("\"tables\": {list}"))))
    }
}

impl Table {
    /// The row of a peer, if it was measured.
    pub fn row(&self, peer: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.peer == peer && row.not_run.is_none())
    }

    /// The row of leasehold, if it was measured.
    pub fn ours(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.peer.starts_with(crate::peers::LEASEHOLD) && row.not_run.is_none())
    }
}

/// Four digits: more would only be noise.
fn rounded(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let factor = 10_f64.powi(digits);
    (value * factor).round() / factor
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Results with two peers that were measured and one that was not.
    pub(crate) fn sample() -> Results {
        let row = |peer: &str, p50: f64| {
            let mut row = Row { peer: peer.to_owned(), not_run: None, figures: BTreeMap::new() };
            for noise in [1.0, 1.1, 0.9] {
                let figures =
                    [("p50_us", p50 * noise), ("per_second", 1e6 / p50), ("server_cpu_us", p50 / 5.0)];
                row.add(&BTreeMap::from(figures));
            }
            row
        };
        let rows = vec![
            row("bare scripts", 80.0),
            row("leasehold", 100.0),
            Row::not_run("redsync", "go is not installed"),
        ];
        let tables = vec![
            Table { work: "redis-pair-1".to_owned(), rows: rows.clone() },
            Table { work: "redis-pair-64".to_owned(), rows },
        ];
        Results {
            day: "2026-11-18".to_owned(),
            mode: Mode::Quick,
            note: "A sample.".to_owned(),
            repetitions: 3,
            lasting_ms: 500,
            machine: Machine {
                cores: 2,
                processor: "A processor".to_owned(),
                memory_gb: 8,
                kernel: "6.1".to_owned(),
                load_at_start: 0.1,
                idle_states_held_off: false,
            },
            versions: BTreeMap::from([("Redis".to_owned(), "7.0.15".to_owned())]),
            tables,
        }
    }

    #[test]
    fn results_survive_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("latest.json");
        let mut results = sample();
        results.tables[0].rows[0].figures.insert("spread".to_owned(), vec![Some(1.0), None]);
        results.save(&file).unwrap();
        assert_eq!(Results::load(&file).unwrap(), results);
        assert_eq!(results.tables[0].rows[0].values("spread"), [1.0, f64::INFINITY]);
    }

    #[test]
    fn figures_have_four_digits() {
        assert_eq!(rounded(123_456.7), 123_500.0);
        assert_eq!(rounded(0.012_345_6), 0.012_35);
        assert_eq!(rounded(0.0), 0.0);
    }
}
