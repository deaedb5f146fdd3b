//! Reading the spec directories: the devices, and the files with problems.
//!
//! | case | result |
//! |---|---|
//! | order | directories as given, later ones have priority; files by name |
//! | files | `.json` and `.yaml` in the directory itself; links are followed; other files are ignored |
//! | an invalid file | is reported; other files are loaded |
//! | a missing directory | is empty |
//! | an unreadable directory | is reported, and ends the scan |
//! | a device in two directories | the one with priority, without a report |
//! | a device in two files of one directory | neither, even if a directory with priority has a third: as in the Go library |

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drakkar_cdi::{Device, Spec, validate};

use super::SpecProblem;

/// The largest spec file; a device has a few hundred bytes.
const MAX_FILE: u64 = 16 << 20;

/// All specs of the directories, at one point in time.
#[derive(Debug, Default)]
pub struct Specs {
    devices: HashMap<String, (Arc<File>, usize)>,
    problems: Vec<SpecProblem>,
}

/// A valid spec file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    priority: usize,
    pub(super) spec: Spec,
}

/// Reads the directories; later ones have priority. Blocks.
pub fn scan(directories: &[PathBuf]) -> Specs {
    let mut specs = Specs::default();
    let mut conflicts = HashSet::new();
    'directories: for (priority, directory) in directories.iter().enumerate() {
        let paths = match spec_files(directory) {
            Ok(paths) => paths,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                specs.problem(directory, format!("read directory: {error}; directories after it are not read"));
                break 'directories;
            }
        };
        for path in paths {
            match read(&path) {
                Ok(spec) => specs.add(File { path, priority, spec }, &mut conflicts),
                Err(problem) => specs.problem(&path, problem),
            }
        }
    }
    specs.devices.retain(|name, _| !conflicts.contains(name));
    specs
}

impl Specs {
    /// Returns the problems: invalid files and directories, and devices in two files.
    pub fn problems(&self) -> &[SpecProblem] {
        &self.problems
    }

    /// Returns the qualified names of all devices, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.devices.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    pub(super) fn device(&self, name: &str) -> Option<(&Arc<File>, &Device)> {
        let (file, index) = self.devices.get(name)?;
        Some((file, file.spec.devices.get(*index)?))
    }

    fn problem(&mut self, path: &Path, problem: String) {
        self.problems.push(SpecProblem { path: path.to_owned(), problem });
    }

    fn add(&mut self, file: File, conflicts: &mut HashSet<String>) {
        let file = Arc::new(file);
        for (index, device) in file.spec.devices.iter().enumerate() {
            let name = format!("{}={}", file.spec.kind, device.name);
            match self.devices.entry(name) {
                Entry::Vacant(entry) => {
                    entry.insert((Arc::clone(&file), index));
                }
                Entry::Occupied(mut entry) if entry.get().0.priority < file.priority => {
                    entry.insert((Arc::clone(&file), index));
                }
                Entry::Occupied(entry) => {
                    let name = entry.key().clone();
                    let other = entry.get().0.path.clone();
                    let problem = format!(
                        "conflicting device {name:?} (specs {:?}, {:?}): remove it from one of them",
                        file.path, other
                    );
                    conflicts.insert(name);
                    self.problem(&file.path, problem.clone());
                    self.problem(&other, problem);
                }
            }
        }
    }
}

fn spec_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let spec = [".json", ".yaml"].iter().any(|suffix| name.as_encoded_bytes().ends_with(suffix.as_bytes()));
        if spec && !entry.file_type()?.is_dir() {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn read(path: &Path) -> Result<Spec, String> {
    // The type is checked before opening: a pipe would block, and opening a device can have effects.
    let status = fs::metadata(path).map_err(|error| error.to_string())?;
    if !status.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if status.len() > MAX_FILE {
        return Err(format!("has {} bytes, more than {MAX_FILE}", status.len()));
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let spec = if path.as_os_str().as_encoded_bytes().ends_with(b".json") {
        Spec::parse(&bytes).map_err(|error| error.to_string())?
    } else {
        serde_saphyr::from_slice(&bytes).map_err(|error| format!("not a CDI spec in YAML: {error}"))?
    };
    validate(&spec).map_err(|error| error.to_string())?;
    Ok(spec)
}
