//! Tables of MariaDB, written with the client program `mariadb`: the fence needs no driver.

use std::process::Command;

use leasehold_core::{Error, ErrorKind, Pass};
use leasehold_fence::{explain_sqlstate, mariadb};

use crate::servers::Servers;

pub(crate) const PROCEDURE: &str = "mariadb procedure";
pub(crate) const TRIGGER: &str = "mariadb trigger";

fn id_of(target: &str) -> &str {
    target.rsplit_once('#').unwrap().1
}

pub(crate) fn plain_table(servers: &Servers) -> String {
    let id = servers.fresh();
    servers
        .mariadb
        .sql(&format!("CREATE TABLE shop.report_{id} (id INT PRIMARY KEY, body TEXT) ENGINE = InnoDB"));
    format!("{}#{id}", servers.mariadb.port())
}

pub(crate) fn fenced_table(servers: &Servers) -> String {
    let target = plain_table(servers);
    let table = format!("report_{}", id_of(&target));
    let triggers = mariadb::trigger_statements(["shop", &table], &"report/{id}".parse().unwrap()).unwrap();
    servers.mariadb.sql(&format!("DELIMITER //\n{}\n//", triggers.join("\n//\n")));
    target
}

pub(crate) fn read(servers: &Servers, target: &str) -> String {
    servers.mariadb.sql(&format!("SELECT body FROM shop.report_{}", id_of(target)))
}

pub(crate) fn write(downstream: &str, target: &str, pass: &Pass, body: &str) -> Result<(), Error> {
    let (port, id) = target.rsplit_once('#').unwrap();
    let present = if downstream == PROCEDURE { "admit" } else { "enter" };
    // The client program ends at the first error, and the server rolls back.
    let script = format!(
        "START TRANSACTION; CALL leasehold_fence.{present}('{pass}'); \
         INSERT INTO shop.report_{id} VALUES ({id}, '{body}') ON DUPLICATE KEY UPDATE body = '{body}'; COMMIT"
    );
    let client = Command::new("mariadb")
        .args(["--no-defaults", "-h", "127.0.0.1", "-P", port, "-u", "root", "-e", &script])
        .output()
        .expect("the package mariadb-client is installed");
    if client.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&client.stderr);
    Err(refusal(&said, pass).unwrap_or_else(|| Error::new(ErrorKind::Unavailable, said.into_owned())))
}

/// Reads `ERROR 1644 (LH001) at line 1: …`.
fn refusal(said: &str, pass: &Pass) -> Option<Error> {
    let line = said.lines().find(|line| line.starts_with("ERROR "))?;
    let (head, message) = line.split_once(": ")?;
    let state = head.split_once('(')?.1.split_once(')')?.0;
    explain_sqlstate(pass, Some(state), message, None)
}
