//! `drakkar node`: what is prepared on this node, from the state records of its drivers.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, SystemTime};

use drakkar_metadata::Time;
use drakkar_plugin::node_files::ClaimRecord;
use serde::Serialize;

use crate::args::Output;
use crate::args::operate::{HostOptions, NodeCommand};
use crate::exit::{Code, Failure};
use crate::node_facts::claims::{ClaimDirectory, FileContent};
use crate::node_facts::{Checkpoint, DriverFacts, NodeFiles};
use crate::output::table::{Row, Sink, Table};
use crate::output::{plain, styled, write_yaml};

/// The number of characters of a UID in a table, as many as `crictl` prints of an id.
const SHORT_UID: usize = 13;

/// A prepared claim.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PreparedClaim {
    driver: String,
    claim: ClaimName,
    /// The entry of the pod's `resourceClaims`, for a claim from a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_claim: Option<String>,
    /// The UIDs of the pods, from the kubelet's checkpoint; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<Vec<String>>,
    /// The time of the prepare.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    requests: Vec<PreparedRequest>,
    /// The devices that the claim uses exclusively.
    devices: Vec<UsedDevice>,
    has_container_edits: bool,
    #[serde(skip)]
    prepared_at: Option<SystemTime>,
}

#[derive(Debug, Clone, Serialize)]
struct ClaimName {
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Debug, Serialize)]
struct PreparedRequest {
    name: String,
    /// Whether the CDI spec is withheld until the first update.
    gated: bool,
    file: String,
    /// `valid`, `notWritten`, `missing` or `invalid`.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i64>,
    devices: Vec<RequestedDevice>,
}

#[derive(Debug, Serialize)]
struct RequestedDevice {
    request: String,
    pool: String,
    device: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UsedDevice {
    pool: String,
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_id: Option<String>,
}

/// A device that a claim uses.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceInUse {
    driver: String,
    pool: String,
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_id: Option<String>,
    claim: ClaimName,
    /// The requests that the device is for; empty if the driver writes no metadata.
    requests: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip)]
    prepared_at: Option<SystemTime>,
}

pub(crate) fn run(command: &NodeCommand) -> Result<(), Failure> {
    match command {
        NodeCommand::Claims { host, output } => {
            let (claims, problems) = prepared(host)?;
            match output {
                Output::Table => styled(|output| table(output, &claims))?,
                output => print_as(*output, &claims)?,
            }
            finish(problems)
        }
        NodeCommand::Devices { host, output } => {
            let (claims, problems) = prepared(host)?;
            let devices: Vec<DeviceInUse> = claims.iter().flat_map(devices_of).collect();
            match output {
                Output::Table => styled(|output| device_table(output, &devices))?,
                output => print_as(*output, &devices)?,
            }
            finish(problems)
        }
    }
}

/// Reads the records of all drivers, and what could not be read of them.
fn prepared(options: &HostOptions) -> Result<(Vec<PreparedClaim>, Vec<String>), Failure> {
    let node = NodeFiles::read(options, [])?;
    if let Err(error) = &node.plugins {
        let code = if error.kind() == io::ErrorKind::NotFound { Code::NotFound } else { Code::System };
        let failure = Failure::new(code, format!("{}/plugins: {error}", node.kubelet_dir.display()));
        return Err(failure.hint("run it on a node, and as root; --kubelet-dir if the kubelet has another directory"));
    }
    let mut claims = Vec::new();
    let mut problems = Vec::new();
    for driver in &node.drivers {
        for directory in &driver.files.claims {
            match &directory.record {
                Ok(record) => claims.push(claim_of(driver, directory, record, &node.checkpoint)),
                Err(_) => problems.push(format!("{}: no readable state record", directory.path.display())),
            }
        }
        problems.extend(driver.files.unreadable.iter().map(|(path, problem)| format!("{}: {problem}", path.display())));
        if let Err(error) = &driver.directory {
            problems.push(format!("{}: {error}", driver.path.display()));
        }
    }
    if let Checkpoint::Denied(problem) | Checkpoint::Unreadable(problem) = &node.checkpoint {
        problems.push(format!("the kubelet's checkpoint: {problem}"));
    }
    Ok((claims, problems))
}

fn claim_of(
    driver: &DriverFacts,
    directory: &ClaimDirectory,
    record: &ClaimRecord,
    checkpoint: &Checkpoint,
) -> PreparedClaim {
    let uid = record.claim.uid.as_str();
    let requests = record.requests.iter().map(|(name, request)| {
        let found = directory.requests.iter().find(|found| found.name == name.as_str());
        let (state, generation) = match found.map(|found| &found.content) {
            Some(FileContent::Valid(metadata)) => ("valid", Some(metadata.metadata.generation)),
            Some(FileContent::NotWritten) => ("notWritten", None),
            Some(FileContent::Invalid(_)) => ("invalid", None),
            Some(FileContent::Missing) | None => ("missing", None),
        };
        let devices = request.devices.iter().map(|device| RequestedDevice {
            request: device.reference.clone(),
            pool: device.pool.clone(),
            device: device.name.clone(),
        });
        let file = directory.path.join(name.as_str()).join(drakkar_metadata::path::HOST_FILE);
        PreparedRequest {
            name: name.to_string(),
            gated: request.gated,
            file: file.to_string_lossy().into_owned(),
            state,
            generation,
            devices: devices.collect(),
        }
    });
    let devices = record.uses.iter().map(|used| UsedDevice {
        pool: used.pool.clone(),
        device: used.name.clone(),
        share_id: used.share_id.clone(),
    });
    PreparedClaim {
        driver: driver.name.to_string(),
        claim: ClaimName {
            namespace: record.claim.namespace.to_string(),
            name: record.claim.name.to_string(),
            uid: uid.to_owned(),
        },
        pod_claim: record.pod_claim.as_ref().map(ToString::to_string),
        pods: checkpoint.claim(uid).map(|claim| claim.pod_uids.iter().cloned().collect()),
        since: directory.since.and_then(timestamp),
        requests: requests.collect(),
        devices: devices.collect(),
        has_container_edits: record.has_container_edits,
        prepared_at: directory.since,
    }
}

impl PreparedClaim {
    fn generation(&self) -> Option<i64> {
        self.requests.iter().filter_map(|request| request.generation).max()
    }

    /// Returns the names of all devices, those with admin access too.
    fn device_names(&self) -> BTreeSet<&str> {
        let requested = self.requests.iter().flat_map(|request| &request.devices).map(|device| &*device.device);
        requested.chain(self.devices.iter().map(|device| &*device.device)).collect()
    }
}

fn devices_of(claim: &PreparedClaim) -> impl Iterator<Item = DeviceInUse> {
    let requests_of = |pool: &str, device: &str| -> Vec<String> {
        let requested = claim.requests.iter().flat_map(|request| &request.devices);
        let of_device = requested.filter(|requested| requested.pool == pool && requested.device == device);
        of_device.map(|requested| requested.request.clone()).collect()
    };
    claim.devices.iter().map(move |used| DeviceInUse {
        driver: claim.driver.clone(),
        pool: used.pool.clone(),
        device: used.device.clone(),
        share_id: used.share_id.clone(),
        claim: claim.claim.clone(),
        requests: requests_of(&used.pool, &used.device),
        since: claim.since.clone(),
        prepared_at: claim.prepared_at,
    })
}

fn table(output: &mut dyn io::Write, claims: &[PreparedClaim]) -> io::Result<()> {
    Table::new(["CLAIM", "UID", "DRIVER", "DEVICES", "PODS", "GEN", "AGE"]).write(output, |sink: &mut Sink<'_, 7>| {
        claims.iter().try_for_each(|claim| {
            let devices = claim.device_names().into_iter().collect::<Vec<_>>().join(",");
            let pods = claim.pods.as_ref().map_or("-".to_owned(), |pods| pods.len().to_string());
            let generation = claim.generation().map_or("-".to_owned(), |generation| generation.to_string());
            let row: Row<'_, 7> = [
                format!("{}/{}", claim.claim.namespace, claim.claim.name).into(),
                short(&claim.claim.uid),
                (&*claim.driver).into(),
                devices.into(),
                pods.into(),
                generation.into(),
                age(claim.prepared_at).into(),
            ];
            sink(row)
        })
    })
}

fn device_table(output: &mut dyn io::Write, devices: &[DeviceInUse]) -> io::Result<()> {
    Table::new(["DEVICE", "POOL", "DRIVER", "CLAIM", "REQUEST", "AGE"]).write(output, |sink: &mut Sink<'_, 6>| {
        devices.iter().try_for_each(|used| {
            let device = match &used.share_id {
                Some(share) => format!("{} (share {})", used.device, short(share)),
                None => used.device.clone(),
            };
            let requests = if used.requests.is_empty() { "-".to_owned() } else { used.requests.join(",") };
            sink([
                device.into(),
                (&*used.pool).into(),
                (&*used.driver).into(),
                format!("{}/{}", used.claim.namespace, used.claim.name).into(),
                requests.into(),
                age(used.prepared_at).into(),
            ])
        })
    })
}

fn print_as(output: Output, value: &impl Serialize) -> io::Result<()> {
    plain(|writer| match output {
        Output::Yaml => write_yaml(writer, value),
        Output::Json | Output::Table => {
            serde_json::to_writer_pretty(&mut *writer, value)?;
            writeln!(writer)
        }
    })
}

/// Ends the command: what could not be read is an error, after what could.
fn finish(problems: Vec<String>) -> Result<(), Failure> {
    let failures = problems.into_iter().map(|problem| Failure::new(Code::System, problem)).collect();
    match Failure::join(failures) {
        Some(failure) => Err(failure.hint("`drakkar doctor` says more")),
        None => Ok(()),
    }
}

/// Returns the start of a UID, as `crictl` prints ids.
fn short(uid: &str) -> Cow<'_, str> {
    uid.chars().take(SHORT_UID).collect::<String>().into()
}

pub(crate) fn timestamp(time: SystemTime) -> Option<String> {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Some(Time::from_unix_seconds(i64::try_from(seconds).ok()?).ok()?.to_string())
}

/// Returns the time since then in one unit, as `kubectl` does.
fn age(since: Option<SystemTime>) -> String {
    let Some(since) = since else { return "-".to_owned() };
    match SystemTime::now().duration_since(since).as_ref().map(Duration::as_secs) {
        Err(_) => "0s".to_owned(),
        Ok(seconds @ 0..120) => format!("{seconds}s"),
        Ok(seconds @ 120..7200) => format!("{}m", seconds / 60),
        Ok(seconds @ 7200..172_800) => format!("{}h", seconds / 3600),
        Ok(seconds) => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_one_unit() {
        let ago = |seconds| Some(SystemTime::now() - Duration::from_secs(seconds));
        for (seconds, expected) in [(180, "3m"), (7300, "2h"), (200_000, "2d")] {
            assert_eq!(age(ago(seconds)), expected);
        }
        assert_eq!(age(None), "-");
        assert_eq!(age(Some(SystemTime::now() + Duration::from_secs(60))), "0s", "a clock that was set back");
    }
}
