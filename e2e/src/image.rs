//! OCI images of single programs, made without a container engine.
//!
//! The file is a tar of an OCI image layout with one image of one layer, not compressed: it is read once, on the
//! machine where it was made. The same input gives the same bytes.
//!
//! A program that is linked dynamically gets the libraries of this machine beside it, so a debug build will do; a
//! static one gets nothing.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::error::{Doing, Result};
use crate::machine::busybox;
use crate::program::Program;
use crate::run::run;

/// What is to be in an image.
///
/// ```no_run
/// use drakkar_e2e::Image;
///
/// # fn main() -> drakkar_e2e::Result<()> {
/// Image::new("localhost/gpu-driver:e2e", "target/debug/examples/gpu")?.with_busybox()?.write("gpu.tar".as_ref())
/// # }
/// ```
#[derive(Debug)]
pub struct Image {
    name: String,
    /// What a container runs: the field of the configuration, and its value.
    runs: (&'static str, String),
    /// How it is asked to end.
    stop_signal: &'static str,
    architecture: &'static str,
    layer: Layer,
}

impl Image {
    /// An image with this name (with a tag) that runs this program: it is `/PROGRAM` there.
    ///
    /// # Errors
    ///
    /// The program or one of its libraries cannot be read, or it is none.
    pub fn new(name: impl Into<String>, program: impl AsRef<Path>) -> Result<Self> {
        let path = program.as_ref();
        let program = Program::read(path)?;
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        let entrypoint = format!("/{file_name}");
        let mut layer = Layer::new()?;
        layer.file(Path::new(&entrypoint), &program.content)?;
        for library in &program.libraries {
            let content = std::fs::read(library).doing(|| format!("read {}", library.display()))?;
            layer.file(library, &content)?;
        }
        Ok(Self {
            name: name.into(),
            runs: ("Entrypoint", entrypoint),
            stop_signal: "SIGTERM",
            architecture: program.architecture,
            layer,
        })
    }

    /// An image of busybox alone.
    pub(crate) fn busybox(name: &str) -> Result<Self> {
        let mut image = Self::new(name, busybox()?)?;
        image.layer.applets("/busybox")?;
        // As in the image of that name that everybody knows: arguments are a command.
        image.runs = ("Cmd", "sh".to_owned());
        // Process 1 of a container hears SIGTERM only if it asks to, which a shell or `sleep` does not: without this each
        // pod takes two seconds more to end.
        image.stop_signal = "SIGKILL";
        Ok(image)
    }

    /// Adds busybox with all its commands, to look around in a container.
    ///
    /// # Errors
    ///
    /// This machine has none.
    pub fn with_busybox(mut self) -> Result<Self> {
        let content = Program::read(busybox()?)?.content;
        self.layer.file(Path::new("/bin/busybox"), &content)?;
        self.layer.applets("/bin/busybox")?;
        Ok(self)
    }

    /// Writes the file.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write(self, output: &Path) -> Result<()> {
        let doing = || format!("write {}", output.display());
        let file = File::create(output).doing(doing)?;
        let mut archive = Builder::new(BufWriter::new(file));
        let layer = Blob::new("application/vnd.oci.image.layer.v1.tar", self.layer.finish()?);
        let (field, program) = self.runs;
        let config = Blob::new(
            "application/vnd.oci.image.config.v1+json",
            json!({
                "architecture": self.architecture,
                "os": "linux",
                "config": {(field): [program], "Env": ["PATH=/bin:/usr/bin"], "WorkingDir": "/", "StopSignal": self.stop_signal},
                "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
            }),
        );
        let manifest = Blob::new(
            "application/vnd.oci.image.manifest.v1+json",
            json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config.descriptor(),
                "layers": [layer.descriptor()],
            }),
        );
        let mut descriptor = manifest.descriptor();
        // The first is what containerd takes an image's whole name from, the second what other tools do.
        descriptor["annotations"] =
            json!({"io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": self.name});
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [descriptor],
        });

        let layout = json!({"imageLayoutVersion": "1.0.0"});
        append(&mut archive, "oci-layout", layout.to_string().as_bytes()).doing(doing)?;
        append(&mut archive, "index.json", index.to_string().as_bytes()).doing(doing)?;
        for blob in [manifest, config, layer] {
            append(&mut archive, &blob.path(), &blob.content).doing(doing)?;
        }
        archive.into_inner().and_then(|mut file| file.flush()).doing(doing)
    }
}

/// Something that others refer to by its hash.
struct Blob {
    media_type: &'static str,
    digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, content: impl Into<Content>) -> Self {
        let Content(content) = content.into();
        let hash: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { media_type, digest: format!("sha256:{hash}"), content }
    }

    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.content.len()})
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

struct Content(Vec<u8>);

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<Value> for Content {
    fn from(value: Value) -> Self {
        Self(value.to_string().into_bytes())
    }
}

/// The file system of an image.
struct Layer {
    archive: Builder<Vec<u8>>,
    present: BTreeSet<PathBuf>,
}

impl std::fmt::Debug for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layer").field("present", &self.present).finish_non_exhaustive()
    }
}

impl Layer {
    /// With the directories that runtimes mount over, and what most images have.
    fn new() -> Result<Self> {
        let mut layer = Self { archive: Builder::new(Vec::new()), present: BTreeSet::new() };
        for path in ["bin", "dev", "etc", "proc", "run", "sys", "var"] {
            layer.directory(Path::new(path), 0o755)?;
        }
        layer.directory(Path::new("tmp"), 0o1777)?;
        layer.link(Path::new("var/run"), Path::new("../run"))?;
        Ok(layer)
    }

    fn directory(&mut self, path: &Path, mode: u32) -> Result<()> {
        if path.as_os_str().is_empty() || !self.present.insert(path.to_path_buf()) {
            return Ok(());
        }
        let mut header = header(EntryType::Directory, mode, 0);
        self.archive.append_data(&mut header, path, &[][..]).doing(|| format!("add {} to a layer", path.display()))
    }

    /// A file that can be executed, with the directories on the way to it.
    fn file(&mut self, path: &Path, content: &[u8]) -> Result<()> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents {
            self.directory(parent, 0o755)?;
        }
        if !self.present.insert(path.to_path_buf()) {
            return Ok(());
        }
        let mut header = header(EntryType::Regular, 0o755, content.len() as u64);
        self.archive.append_data(&mut header, path, content).doing(|| format!("add {} to a layer", path.display()))
    }

    fn link(&mut self, path: &Path, target: &Path) -> Result<()> {
        if !self.present.insert(path.to_path_buf()) {
            return Ok(());
        }
        let mut header = header(EntryType::Symlink, 0o777, 0);
        self.archive.append_link(&mut header, path, target).doing(|| format!("add {} to a layer", path.display()))
    }

    /// The commands of this machine's busybox, in `/bin`.
    fn applets(&mut self, target: &str) -> Result<()> {
        for applet in run(Command::new(busybox()?).arg("--list"))?.lines() {
            self.link(&Path::new("bin").join(applet), Path::new(target))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>> {
        self.archive.into_inner().doing(|| "finish a layer".to_owned())
    }
}

/// Root's, and as old as time.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn append(archive: &mut Builder<impl Write>, path: &str, content: &[u8]) -> std::io::Result<()> {
    archive.append_data(&mut header(EntryType::Regular, 0o644, content.len() as u64), path, content)
}

#[cfg(test)]
mod tests;
