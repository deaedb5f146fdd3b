//! The output in docs/doctor.md is that of the commands. `DRAKKAR_BLESS=1` writes it anew.

use std::fs;

use super::node::{HealthyNode, command, run};
use crate::guide::repository;

/// Replaces what differs from run to run, and the paths by those of a real node.
fn normalized(text: &str, node: &HealthyNode, uids: &[(String, &str)]) -> String {
    let directory = node.directory().to_str().unwrap();
    let mut text = text
        .replace(&format!("{directory}/kubelet"), "/var/lib/kubelet")
        .replace(&format!("{directory}/cdi"), "/var/run/cdi")
        .replace(&format!("{directory}/config.toml"), "/etc/containerd/config.toml")
        .replace(&node.node.api().url(), "https://10.0.0.1:6443");
    for (uid, shown) in uids {
        text = text.replace(uid, shown).replace(&uid[..13], &shown[..13]);
    }
    text
}

/// The words of a text: paths of another length wrap lines elsewhere. Ages and times are not compared.
fn words(text: &str) -> Vec<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_time =
        |word: &str| word.strip_suffix('s').is_some_and(is_number) || (word.starts_with("20") && word.ends_with('Z'));
    text.split_whitespace().filter(|word| !is_time(word)).collect()
}

#[tokio::test]
async fn the_page_shows_what_the_commands_print() {
    let node = HealthyNode::start().await;
    let path = repository().join("docs/doctor.md");
    let mut page = fs::read_to_string(&path).unwrap();
    let uids = [
        (node.node.claim_ref("train").await.unwrap().uid.to_string(), "0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"),
        (node.node.pod("default", "trainer").await.unwrap().uid().to_owned(), "7f9a7f0a-6c0b-4f0f-8f5e-0c5d8b1f3c11"),
    ];
    let kubeconfig = node.kubeconfig().to_str().unwrap().to_owned();
    let node_command = |words: &[&str], more: &[&str]| {
        let mut command = command();
        command.args(node.options(words)).args(more);
        run(command)
    };
    let healthy = node.text(&[]).await.1;
    let claims = node_command(&["node", "claims"], &[]).await.1;
    let devices = node_command(&["node", "devices"], &[]).await.1;
    // Containers do not run here, and what is visible of them depends on the user.
    let inspected = node_command(&["inspect", "default/train"], &["--kubeconfig", &kubeconfig]).await.1;
    let inspected = inspected.split("Containers\n").next().unwrap().to_owned();
    let config = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), config.replace("enable_cdi = true", "enable_cdi = false")).unwrap();
    let broken = node.text(&[]).await.1;
    let start = broken.find("Container runtime").unwrap();
    let end = broken.find("Files\n").unwrap();
    let broken = format!("…\n{}…\n{}", &broken[start..end], broken[end..].rsplit("\n\n").next().unwrap());
    for (name, shown, printed) in [
        ("doctor", "drakkar doctor", healthy),
        ("broken", "drakkar doctor", broken),
        ("claims", "drakkar node claims", claims),
        ("devices", "drakkar node devices", devices),
        ("inspect", "drakkar inspect default/train", inspected),
    ] {
        let printed = normalized(&printed, &node, &uids);
        let marker = format!("<!-- output: {name} -->\n");
        let start = page.find(&marker).unwrap() + marker.len();
        let block = page[start..].strip_prefix("```console\n").and_then(|rest| rest.split_once("\n```\n"));
        if std::env::var_os("DRAKKAR_BLESS").is_some() {
            let end = block.map_or(start, |(block, _)| start + "```console\n".len() + block.len() + "\n```\n".len());
            page.replace_range(start..end, &format!("```console\n$ {shown}\n{printed}```\n"));
            continue;
        }
        let block = block.unwrap_or_else(|| panic!("no output of {name}")).0;
        let expected = block.strip_prefix(&format!("$ {shown}\n")).unwrap();
        assert_eq!(words(expected), words(&printed), "{name}\n{printed}");
        let too_wide = expected.lines().find(|line| line.chars().count() > 80 && line.split_whitespace().count() > 1);
        assert_eq!(too_wide, None);
    }
    if std::env::var_os("DRAKKAR_BLESS").is_some() {
        fs::write(path, page).unwrap();
    }
}
