//! OCI images of single programs, built without a container engine.
//!
//! The file is a tar of an OCI image layout with one image of one layer. It is not compressed, since it is read once, on
//! the host that wrote it. The same input gives the same bytes.
//!
//! The image of a dynamically linked program includes the host's libraries, so that a debug build can be used. The image
//! of a static program includes nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::error::{IoContext, Result};
use crate::host::busybox;
use crate::program::Program;
use crate::run::run;

/// An image that runs one program.
///
/// ```no_run
/// use drakkar_e2e::Image;
///
/// # fn main() -> drakkar_e2e::Result<()> {
/// Image::new("localhost/gpu-driver:e2e", "target/debug/examples/gpu")?.with_busybox()?.write("gpu.tar".as_ref())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Image {
    name: String,
    /// The field of the image configuration that sets the command, and its value.
    command: (&'static str, String),
    stop_signal: &'static str,
    architecture: &'static str,
    /// Whether the program needs libraries of the host that built the image.
    is_dynamic: bool,
    labels: BTreeMap<String, String>,
    user: Option<String>,
    layer: Layer,
}

impl Image {
    /// Creates an image with this name (including a tag) that runs a program, which is copied to `/PROGRAM`.
    ///
    /// # Errors
    ///
    /// The program or one of its libraries cannot be read, or the file is not a program.
    pub fn new(name: impl Into<String>, program: impl AsRef<Path>) -> Result<Self> {
        let path = program.as_ref();
        let program = Program::read(path)?;
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        let entrypoint = format!("/{file_name}");
        let mut layer = Layer::new()?;
        layer.file(Path::new(&entrypoint), 0o755, &program.content)?;
        for library in &program.libraries {
            let content = std::fs::read(library).with_context(|| format!("read {}", library.display()))?;
            layer.file(library, 0o755, &content)?;
        }
        Ok(Self {
            name: name.into(),
            command: ("Entrypoint", entrypoint),
            stop_signal: "SIGTERM",
            architecture: program.architecture,
            is_dynamic: !program.libraries.is_empty(),
            labels: BTreeMap::new(),
            user: None,
            layer,
        })
    }

    /// Adds a label, such as `org.opencontainers.image.version`.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Sets the user, and optionally the group, that the program runs as: `65532:65532`. By default it is root.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Adds a file that everyone can read.
    ///
    /// # Errors
    ///
    /// The path cannot be part of an archive.
    pub fn with_file(mut self, path: &Path, content: &[u8]) -> Result<Self> {
        self.layer.file(path, 0o644, content)?;
        Ok(self)
    }

    /// The architecture's OCI name: `amd64` or `arm64`.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Whether the program is dynamically linked, so that the image has libraries of this host.
    pub fn is_dynamic(&self) -> bool {
        self.is_dynamic
    }

    /// Creates an image with busybox only.
    pub(crate) fn busybox(name: &str) -> Result<Self> {
        let mut image = Self::new(name, busybox()?)?;
        image.layer.applets("/busybox")?;
        // As in Docker Hub's busybox image: the container's arguments replace the command.
        image.command = ("Cmd", "sh".to_owned());
        // Pid 1 of a container gets SIGTERM only if it handles it, which a shell or `sleep` does not do: without this each
        // pod takes two seconds longer to stop.
        image.stop_signal = "SIGKILL";
        Ok(image)
    }

    /// Adds busybox with all its applets, for debugging in a container.
    ///
    /// # Errors
    ///
    /// busybox is not installed on this host.
    pub fn with_busybox(mut self) -> Result<Self> {
        let content = Program::read(busybox()?)?.content;
        self.layer.file(Path::new("/bin/busybox"), 0o755, &content)?;
        self.layer.applets("/bin/busybox")?;
        Ok(self)
    }

    /// Writes the image to a tar file, and returns its digest: `sha256:…`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(self, output: &Path) -> Result<String> {
        let context = || format!("write {}", output.display());
        let file = File::create(output).with_context(context)?;
        let mut archive = Builder::new(BufWriter::new(file));
        let layer = Blob::new("application/vnd.oci.image.layer.v1.tar", self.layer.finish()?);
        let (field, program) = self.command;
        let mut config = json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": {(field): [program], "Env": ["PATH=/bin:/usr/bin"], "WorkingDir": "/", "StopSignal": self.stop_signal},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        });
        if !self.labels.is_empty() {
            config["config"]["Labels"] = json!(self.labels);
        }
        if let Some(user) = self.user {
            config["config"]["User"] = user.into();
        }
        let config = Blob::new("application/vnd.oci.image.config.v1+json", config);
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
        // containerd takes the full image name from the first, other tools from the second.
        descriptor["annotations"] =
            json!({"io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": self.name});
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [descriptor],
        });

        let layout = json!({"imageLayoutVersion": "1.0.0"});
        append(&mut archive, "oci-layout", layout.to_string().as_bytes()).with_context(context)?;
        append(&mut archive, "index.json", index.to_string().as_bytes()).with_context(context)?;
        let digest = manifest.digest.clone();
        for blob in [manifest, config, layer] {
            append(&mut archive, &blob.path(), &blob.content).with_context(context)?;
        }
        archive.into_inner().and_then(|mut file| file.flush()).with_context(context)?;
        Ok(digest)
    }
}

/// Content that is addressed by its digest.
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

/// The file system of an image, as a tar.
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
    /// Creates a layer with the directories that runtimes mount over and that most images have.
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
        self.archive
            .append_data(&mut header, path, &[][..])
            .with_context(|| format!("add {} to a layer", path.display()))
    }

    /// Adds a file and its parent directories.
    fn file(&mut self, path: &Path, mode: u32, content: &[u8]) -> Result<()> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents {
            self.directory(parent, 0o755)?;
        }
        if !self.present.insert(path.to_path_buf()) {
            return Ok(());
        }
        let mut header = header(EntryType::Regular, mode, content.len() as u64);
        self.archive
            .append_data(&mut header, path, content)
            .with_context(|| format!("add {} to a layer", path.display()))
    }

    fn link(&mut self, path: &Path, target: &Path) -> Result<()> {
        if !self.present.insert(path.to_path_buf()) {
            return Ok(());
        }
        let mut header = header(EntryType::Symlink, 0o777, 0);
        self.archive
            .append_link(&mut header, path, target)
            .with_context(|| format!("add {} to a layer", path.display()))
    }

    /// Adds links in `/bin` for the applets of the host's busybox.
    fn applets(&mut self, target: &str) -> Result<()> {
        for applet in run(Command::new(busybox()?).arg("--list"))?.lines() {
            self.link(&Path::new("bin").join(applet), Path::new(target))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>> {
        self.archive.into_inner().with_context(|| "finish a layer".to_owned())
    }
}

/// A tar header with owner root and modification time 0, so that images are reproducible.
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
