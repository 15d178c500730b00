//! Ten thousand long polls that wait: the memory and the processor time of the server.

use std::time::Duration;

use leasehold_bench::Table;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::{
    connection::{self, Connection},
    serving::Serving,
};

const WAITERS: usize = 10_000;
const RESOURCES: usize = 100;
const OBSERVED: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn measure(table: &mut Table) {
    table.title("10,000 long polls that wait, for 100 resources");
    let serving = Serving::start();
    let leases = leasehold::connect(&serving.redis.url()).await.unwrap();
    let mut held = Vec::new();
    for number in 0..RESOURCES {
        held.push(leases.lease("busy", &number.to_string()).ttl(PATIENCE).acquire().await.unwrap());
    }
    let before = serving.resident_megabytes();
    let mut waiting = Vec::new();
    for number in 0..WAITERS {
        let resource = format!("busy/{}", number % RESOURCES);
        let acquire = json!({
            "resource": resource, "owner": connection::owner(number), "ttl_ms": 30000, "wait_ms": 60000,
        });
        let mut connection = Connection::open(&serving.address).await;
        connection.send(&connection::post("/v1/acquire", &acquire)).await;
        waiting.push(connection);
    }
    let last = (RESOURCES - 1).to_string();
    let queued = async {
        while leases.look("busy", &last).await.unwrap().queue_length < (WAITERS / RESOURCES) as u32 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, queued).await.expect("all are queued");
    sleep(Duration::from_secs(2)).await;
    let cpu = serving.cpu_time();
    sleep(OBSERVED).await;
    let core = (serving.cpu_time() - cpu).as_secs_f64() / OBSERVED.as_secs_f64() * 100.0;
    let megabytes = serving.resident_megabytes();
    table.row("memory before", &format!("{before:.0} MB"));
    table.target("memory", &format!("{megabytes:.0} MB"), "< 300 MB", megabytes < 300.0);
    table.target("CPU", &format!("{core:.1} % of a core"), "< 5 %", core < 5.0);
    for lease in held {
        let _ = lease.release().await;
    }
}
