//! A password from a URL or from a file.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use leasehold_core::{Error, ErrorKind, Result};

/// A password, or the file that it is read from.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password {
    text: Option<String>,
    file: Option<PathBuf>,
}

impl Password {
    /// This password. It replaces a file.
    pub fn set(&mut self, password: impl Into<String>) {
        *self = Password { text: Some(password.into()), file: None };
    }

    /// The password is in this file. The file is read for every connection, so that the password can be rotated.
    pub fn set_file(&mut self, file: impl Into<PathBuf>) {
        self.file = Some(file.into());
    }

    /// Whether there is neither a password nor a file.
    pub fn is_empty(&self) -> bool {
        self.text.is_none() && self.file.is_none()
    }

    /// The password now. A file comes before a password in the URL.
    ///
    /// # Errors
    /// `Denied`, with the path, if the file cannot be read.
    pub fn current(&self) -> Result<Option<String>> {
        match &self.file {
            Some(file) => read_file(file).map(Some),
            None => Ok(self.text.clone()),
        }
    }
}

impl fmt::Debug for Password {
    /// Shows the file, and never the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.text) {
            (Some(file), _) => write!(f, "file {}", file.display()),
            (None, Some(_)) => f.write_str("(hidden)"),
            (None, None) => f.write_str("none"),
        }
    }
}

/// Reads a password from a file. Line ends at the end of the file are not part of it.
///
/// # Errors
/// `Denied`, with the path, if the file cannot be read.
pub fn read_file(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::new(ErrorKind::Denied, format!("cannot read the password file {}", path.display()))
            .because(error)
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named_and_a_password_is_not_shown() {
        let mut password = Password::default();
        assert!(password.is_empty());
        password.set("sesame");
        assert_eq!(password.current().expect("it is at hand").as_deref(), Some("sesame"));
        assert!(!format!("{password:?}").contains("sesame"));
        password.set_file("/no/such/file");
        let error = password.current().expect_err("there is no such file");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }

    #[test]
    fn line_ends_are_not_part_of_the_password() {
        let file = std::env::temp_dir().join(format!("leasehold-password-{}", std::process::id()));
        std::fs::write(&file, " open sesame \r\n\n").expect("the temporary folder can be written to");
        let read = read_file(&file);
        std::fs::remove_file(&file).expect("it was just written");
        assert_eq!(read.expect("it is readable"), " open sesame ");
    }
}
