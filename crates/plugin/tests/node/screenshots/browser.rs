//! Chromium without a window, over its debugging pipe: JSON messages that end with a zero byte.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use serde_json::{Value, json};

/// What a page measures itself to be.
const MEASURE: &str = "(() => {
  const width = element => element.getBoundingClientRect().right;
  const widest = [...document.querySelectorAll('body *')].reduce((a, b) => width(b) > width(a) ? b : a);
  return {
    viewport: window.innerWidth,
    content: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    widest: widest.outerHTML.slice(0, 200),
    text: document.body.innerText,
    background: Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]),
  };
})()";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Light,
    Dark,
}

/// A page as the browser shows it. Lengths are in CSS pixels.
#[derive(Debug, serde::Deserialize)]
pub struct Page {
    pub viewport: u32,
    pub content: u32,
    pub height: u32,
    /// The beginning of the element that reaches the furthest.
    pub widest: String,
    pub text: String,
    /// The red part of the background.
    pub background: u8,
}

/// A running browser with one page.
pub struct Browser {
    child: Child,
    commands: File,
    answers: BufReader<File>,
    session: Option<String>,
    last_id: u64,
    _directory: tempfile::TempDir,
}

impl Browser {
    /// Starts Chromium; `None` if it is not installed.
    pub fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = directory.path().join(name);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            path
        };
        let commands = pipe("commands");
        let answers = pipe("answers");
        // The descriptors 3 and 4 are those that Chromium reads commands from and writes answers to.
        let script = "command -v chromium >/dev/null || exit 127; exec chromium --headless --no-sandbox --disable-gpu \
                      --hide-scrollbars --remote-debugging-pipe --user-data-dir=\"$0\" about:blank 3<>\"$1\" 4<>\"$2\"";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .args([&directory.path().join("profile"), &commands, &answers])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if Command::new("sh")
            .args(["-c", "command -v chromium >/dev/null"])
            .status()
            .is_ok_and(|found| !found.success())
        {
            child.wait().unwrap();
            assert!(std::env::var_os("DRAKKAR_REQUIRE_CHROMIUM").is_none(), "chromium is not installed");
            eprintln!("skipped: chromium is not installed (Debian's package chromium)");
            return None;
        }
        // For reading and writing: opening does not wait for the other side then.
        let open = |path| File::options().read(true).write(true).open(path).unwrap();
        let mut browser = Self {
            child,
            commands: open(commands),
            answers: BufReader::new(open(answers)),
            session: None,
            last_id: 0,
            _directory: directory,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        browser.call("Page.enable", &json!({}));
        Some(browser)
    }

    /// Opens a page in a window of this width.
    pub fn open(&mut self, url: &str, width: u32, scheme: Scheme) -> Page {
        self.set_size(width, 800);
        let scheme = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": features}));
        self.call("Page.navigate", &json!({"url": url}));
        self.wait_for("Page.loadEventFired");
        let measured = self.call("Runtime.evaluate", &json!({"expression": MEASURE, "returnByValue": true}));
        serde_json::from_value(measured["result"]["value"].clone())
            .unwrap_or_else(|error| panic!("{error}: {measured}"))
    }

    /// Returns a picture of the open page, as WebP: half the size of Chromium's PNG.
    pub fn screenshot(&mut self, width: u32, height: u32) -> Vec<u8> {
        self.set_size(width, height);
        let picture = self.call("Page.captureScreenshot", &json!({"format": "webp", "quality": 85}));
        base64::engine::general_purpose::STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }

    fn set_size(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut answer = self.next();
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    fn wait_for(&mut self, event: &str) {
        while self.next()["method"] != event {}
    }

    fn next(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.answers.read_until(0, &mut bytes).unwrap();
        serde_json::from_slice(bytes.strip_suffix(b"\0").expect("the browser ended")).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
