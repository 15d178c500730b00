//! The table of backends in the guarantees page has the same texts as the backends.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

use std::{fs, path::Path};

use leasehold::Backend;

fn row_of(backend: &dyn Backend) -> String {
    let info = backend.info();
    format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when)
}

#[tokio::test]
async fn the_table_of_backends_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/guarantees.md")).unwrap();
    let memory = leasehold::open("memory:").await.unwrap();
    assert!(page.contains(&row_of(&*memory)), "memory: {}", row_of(&*memory));

    #[cfg(feature = "sqlite")]
    {
        let file = std::env::temp_dir().join(format!("leasehold-page-{}.db", std::process::id()));
        let sqlite = leasehold::open(&format!("sqlite:{}?file_system=any", file.display())).await.unwrap();
        assert!(page.contains(&row_of(&*sqlite)), "sqlite: {}", row_of(&*sqlite));
        drop(sqlite);
        let left = fs::read_dir(file.parent().unwrap()).unwrap().flatten();
        let ours = left.filter(|entry| entry.path().to_string_lossy().starts_with(&*file.to_string_lossy()));
        ours.for_each(|entry| fs::remove_file(entry.path()).unwrap());
    }
}
