//! A certificate authority for tests, and certificates that it has signed.
#![allow(dead_code, reason = "every test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{path::PathBuf, process::Command};

use leasehold_testkit::servers::TlsFiles;

/// A certificate authority with its files in a temporary folder.
pub(crate) struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let authority = Authority { folder: tempfile::tempdir().unwrap() };
        authority.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem -days 2 -subj \
             /CN=authority",
        );
        authority
    }

    fn openssl(&self, args: &str) {
        let output = Command::new("openssl")
            .args(args.split_whitespace())
            .current_dir(self.folder.path())
            .output()
            .expect("the package openssl is installed");
        assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate for these names, valid for so many days; if that is negative, it has expired.
    pub(crate) fn sign(&self, name: &str, names: &str, days: i32) -> TlsFiles {
        std::fs::write(self.path("extensions"), format!("subjectAltName={names}\n")).unwrap();
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key -out {name}.csr -subj /CN=server"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days {days} -extfile \
             extensions"
        ));
        TlsFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            authority: self.path("ca.pem"),
        }
    }

    pub(crate) fn good(&self) -> TlsFiles {
        self.sign("good", "DNS:localhost,IP:127.0.0.1", 2)
    }

    /// The URL option that makes a client trust it.
    pub(crate) fn url_option(&self) -> String {
        format!("ca_file={}", self.path("ca.pem").display())
    }
}
