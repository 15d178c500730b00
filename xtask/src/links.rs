//! Checks the Markdown files of this repository: every relative link leads to a file, and every test that is named exists.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::root;

pub(crate) fn check() -> Result<(), String> {
    let mut files = Vec::new();
    markdown_under(&root(), &mut files).map_err(|error| format!("cannot list the files: {error}"))?;
    let mut broken = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let directory = file.parent().unwrap_or(Path::new("."));
        let missing = targets(&text).into_iter().filter(|target| !directory.join(target).exists());
        broken.extend(missing.map(|target| format!("{}: {target} does not exist", file.display())));
        let untested =
            tests_named(&text).into_iter().filter(|(file, test)| !has_test(&root().join(file), test));
        broken.extend(untested.map(|(source, test)| format!("{}: {source} has no {test}", file.display())));
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

fn markdown_under(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let skipped = name == "target" || name == "node_modules" || name.to_string_lossy().starts_with('.');
        if entry.file_type()?.is_dir() && !skipped {
            markdown_under(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(())
}

/// The files that a text links to, without the part after `#`.
fn targets(text: &str) -> Vec<&str> {
    let mut code = false;
    let prose = text.lines().filter(move |line| {
        code ^= line.trim_start().starts_with("```");
        !code
    });
    let links = prose.flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
    links
        .map(|link| link.split('#').next().unwrap_or_default())
        .filter(|link| !link.is_empty() && !link.contains(':'))
        .collect()
}

/// The tests that a text names, as in `` `crates/a/tests/b.rs::it_works` ``.
fn tests_named(text: &str) -> Vec<(&str, &str)> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    spans
        .filter_map(|span| span.rsplit_once("::"))
        .filter(|(file, _)| file.ends_with(".rs") && file.contains('/'))
        .collect()
}

fn has_test(file: &Path, test: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|source| source.contains(&format!("fn {test}(")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text =
            "see [a](docs/a.md#part), [b](https://b.example) and [c](#c)\n```\n[d](d.md)\n```\n[e](e.md)";
        assert_eq!(targets(text), ["docs/a.md", "e.md"]);
    }

    #[test]
    fn tests_are_found_by_file_and_name() {
        let text = "`a::b`, `crates/a/tests/b.rs::it_works` and\n`x.rs`: `crates/c.rs::d`";
        assert_eq!(tests_named(text), [("crates/a/tests/b.rs", "it_works"), ("crates/c.rs", "d")]);
        let this = root().join("xtask/src/links.rs");
        assert!(has_test(&this, "tests_are_found_by_file_and_name") && !has_test(&this, "nothing_is_found"));
    }
}
