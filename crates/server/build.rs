//! Lists the files of the dashboard in the folder `dashboard`, for `src/dashboard.rs`: a new file there is served without another line.

use std::{env, error::Error, fmt::Write as _, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=dashboard");
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("dashboard");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| format!("{name:?} is not UTF-8"))?;
        // Folders have what only developers need: the types that the scripts are checked with.
        if entry.file_type()?.is_file() && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    let mut table = String::from("&[\n");
    for name in names {
        let path = folder.join(&name);
        println!("cargo::rerun-if-changed={}", path.display());
        writeln!(table, "    ({name:?}, include_bytes!({:?})),", path.display().to_string())?;
    }
    table.push(']');
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("dashboard.rs"), table)?;
    Ok(())
}
