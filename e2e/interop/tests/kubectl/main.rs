//! The real `kubectl` on the embedded node: `drakkar demo --keep`, and the transcript in docs/demo-kubectl.md. Without Go the
//! tests are skipped with a message.
//!
//! With `DRAKKAR_BLESS=1` the transcript is written anew, from what the commands print.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod demo;
mod mask;
mod transcript;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use demo::Demo;

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/demo-kubectl.md");

#[test]
fn the_guide_shows_what_kubectl_prints() {
    let Some(demo) = Demo::start() else { return };
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    let bless = std::env::var_os("DRAKKAR_BLESS").is_some();
    let mut written = String::new();
    let mut commands = 0;
    let mut differences = Vec::new();
    for part in transcript::parse(&guide) {
        match part {
            transcript::Part::Text(text) => written += text,
            transcript::Part::Command { text, printed } => {
                commands += 1;
                let output = demo.shell(&text);
                assert!(!output.contains("<unknown>") && !output.contains("<invalid>"), "$ {text}\n{output}");
                if mask::mask(&output) != mask::mask(&printed) {
                    differences.push(format!("$ {text}\n--- the guide\n{printed}--- now\n{output}"));
                }
                written += &format!("$ {text}\n{output}");
            }
        }
    }
    assert!(commands >= 12, "{commands} commands");
    if bless {
        std::fs::write(GUIDE, written).unwrap();
    } else {
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }
}

#[test]
fn what_is_not_there_is_said_as_kubernetes_says_it() {
    let Some(demo) = Demo::start() else { return };
    for (command, message) in [
        ("kubectl get pod none", "Error from server (NotFound): pods \"none\" not found"),
        ("kubectl get deployments", "error: the server doesn't have a resource type \"deployments\""),
        ("kubectl top pods", "error: Metrics API not available"),
        ("kubectl logs trainer -c none", "container none is not valid for pod trainer"),
        ("kubectl logs trainer -c train --timestamps", "timestamps is not supported by this server"),
        ("kubectl exec trainer -c train -- nosuchprogram", "nosuchprogram"),
        ("kubectl attach trainer -c train", "could not find the requested resource"),
        ("kubectl port-forward pod/trainer :80", "could not find the requested resource"),
        ("kubectl explain pod.spec.nosuchfield", "error: field \"nosuchfield\" does not exist"),
    ] {
        let (code, output) = demo.run(command);
        assert!(code != 0 && output.contains(message), "$ {command}\n{code}: {output}");
    }
}

#[test]
fn unknown_fields_are_refused_and_conflicts_named() {
    let Some(demo) = Demo::start() else { return };
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n";
    let (code, output) = demo.run(&format!("printf '{map}dat: {{}}\n' | kubectl apply -f -"));
    assert!(code != 0 && output.contains("unknown field \"dat\""), "{output}");
    let apply = |value: &str, flags: &str| {
        demo.run(&format!("printf '{map}data: {{a: {value}}}\n' | kubectl apply --server-side {flags} -f -"))
    };
    assert_eq!(apply("one", ""), (0, "configmap/settings serverside-applied\n".to_owned()));
    let (code, output) = apply("two", "--field-manager=other");
    assert!(code != 0 && output.contains(".data.a"), "{output}");
    assert_eq!(apply("two", "--field-manager=other --force-conflicts").0, 0);
    let (_, edited) = demo.run("EDITOR='sed -i s/two/three/' kubectl edit configmap settings");
    assert_eq!(edited, "configmap/settings edited\n");
    assert_eq!(demo.shell("kubectl get cm settings -o jsonpath={.data.a}"), "three");
}

#[test]
fn a_watch_shows_changes_and_a_follower_new_lines() {
    let Some(demo) = Demo::start() else { return };
    let mut watch = demo.command("exec kubectl get configmaps --watch").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    demo.shell("kubectl create configmap seen --from-literal=a=1");
    let mut next = || lines.next().unwrap().unwrap();
    let header = next();
    assert_eq!(header.split_whitespace().collect::<Vec<_>>(), ["NAME", "DATA", "AGE"]);
    assert!(next().starts_with("seen "));
    watch.kill().unwrap();
    watch.wait().unwrap();

    let talker = "apiVersion: v1\nkind: Pod\nmetadata: {name: talker}\nspec:\n  restartPolicy: Never\n  containers:\n  - {name: main, image: host, command: [sh, -c, \"echo one; until test -e /tmp/go; do sleep 0.1; done; echo two\"]}\n";
    demo.shell(&format!("cat <<'END' | kubectl apply -f -\n{talker}END"));
    demo.shell("kubectl wait --for=jsonpath='{.status.phase}'=Running pod/talker");
    let mut follow = demo.command("exec kubectl logs -f talker").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("one"));
    demo.shell("kubectl exec talker -- touch /tmp/go");
    assert_eq!(lines.next().as_deref(), Some("two"));
    assert_eq!(lines.next(), None);
    assert!(follow.wait().unwrap().success());
    assert_eq!(demo.shell("kubectl delete pod talker"), "pod \"talker\" deleted from default namespace\n");
}

#[test]
fn a_program_gets_the_input_of_kubectl_and_returns_its_exit_code() {
    let Some(demo) = Demo::start() else { return };
    let exec = "kubectl exec -i trainer -c train -- ";
    assert_eq!(demo.run(&format!("echo words | {exec}tr a-z A-Z")), (0, "WORDS\n".to_owned()));
    let (code, output) = demo.run(&format!("{exec}sh -c 'echo trouble >&2; exit 7'"));
    assert_eq!((code, output.as_str()), (7, "trouble\ncommand terminated with exit code 7\n"));
    // Much more than any buffer on the way.
    let (_, count) = demo.run(&format!("head -c 3000000 /dev/zero | {exec}cat | wc -c"));
    assert_eq!(count.trim(), "3000000");
}

#[test]
fn describe_says_what_there_is_of_a_node() {
    let Some(demo) = Demo::start() else { return };
    let output = demo.shell("kubectl describe node worker-0");
    for part in [
        "HolderIdentity:  worker-0",
        "KubeletReady",
        "InternalIP:  127.0.0.1",
        "Container Runtime Version:  drakkar://",
        "Kubelet Version:            v1.37.1",
        "trainer",
        "gpu.example.com",
    ] {
        assert!(output.contains(part), "{part:?} is not in:\n{output}");
    }
    assert!(!output.contains("Failed to get") && !output.contains("NaN"), "{output}");
}
