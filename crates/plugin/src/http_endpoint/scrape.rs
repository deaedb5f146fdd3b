//! `/metrics`: OpenMetrics for clients that ask for it, as Prometheus does, and the Prometheus text format for all others.

use std::fmt::Write as _;

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use super::blocking::BlockingWork;
use crate::metrics::Metrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves the metrics. Encoding them reads `/proc`, so it runs on a blocking thread.
pub(super) async fn serve(metrics: Metrics, work: BlockingWork, headers: HeaderMap) -> Response {
    let wants_open_metrics = accepts_open_metrics(&headers);
    let encode = move || {
        let text = metrics.encode()?;
        Ok(if wants_open_metrics { (OPEN_METRICS, text) } else { (PROMETHEUS_TEXT, to_prometheus_text(&text)) })
    };
    work.run("metrics", encode).await.map(|(kind, text)| ([(CONTENT_TYPE, kind)], text)).into_response()
}

/// Whether the client names OpenMetrics, whatever its preference: all that do prefer it.
fn accepts_open_metrics(headers: &HeaderMap) -> bool {
    let accepted =
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|all| all.split(','));
    accepted.filter_map(|range| range.split(';').next()).any(|kind| kind.trim() == "application/openmetrics-text")
}

/// Converts OpenMetrics text to the Prometheus text format 0.0.4, which has neither units nor the type `info`, and in which the
/// name of a counter has its suffix `_total` everywhere.
fn to_prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 1024);
    // The help text of a family is above its type.
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        let Some(declaration) = line.strip_prefix("# ") else {
            text.push_str(without_exemplar(line));
            text.push('\n');
            continue;
        };
        let mut words = declaration.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("HELP"), Some(name), explanation) => help = Some((name, explanation.unwrap_or_default())),
            (Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "gauge" | "histogram" | "summary" => ("", kind),
                    _ => ("", "untyped"),
                };
                // Writing to a string cannot fail.
                if let Some((_, explanation)) = help.take().filter(|(of, _)| *of == name) {
                    writeln!(text, "# HELP {name}{suffix} {explanation}").ok();
                }
                writeln!(text, "# TYPE {name}{suffix} {kind}").ok();
            }
            // Units and the end.
            _ => {}
        }
    }
    text
}

/// Returns a sample without its exemplar, which begins with the first `#` outside of quotes.
fn without_exemplar(sample: &str) -> &str {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (index, byte) in sample.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => is_quoted = !is_quoted,
            b'#' if !is_quoted => return sample[..index].trim_end(),
            _ => {}
        }
        is_escaped = byte == b'\\' && !is_escaped;
    }
    sample
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_name_it() {
        let accepts = |accept: &str| {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_str(accept).unwrap())]);
            accepts_open_metrics(&headers)
        };
        // As Prometheus 2 and 3 send it.
        assert!(accepts(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        ));
        assert!(accepts("text/plain;version=0.0.4;q=0.5, application/openmetrics-text; version=1.0.0"));
        for other in ["*/*", "text/plain", "text/html,application/xhtml+xml", "application/json", ""] {
            assert!(!accepts(other), "{other}");
        }
        assert!(!accepts_open_metrics(&HeaderMap::new()));
    }

    #[test]
    fn openmetrics_text_becomes_prometheus_text() {
        let open = "\
# HELP calls Completed calls.
# TYPE calls counter
calls_total{code=\"a # \\\" # b\"} 1
# HELP duration_seconds Duration.
# TYPE duration_seconds histogram
# UNIT duration_seconds seconds
duration_seconds_sum 0.5
duration_seconds_count 1
duration_seconds_bucket{le=\"+Inf\"} 1
# HELP build The version.
# TYPE build info
build_info{version=\"1\"} 1
# TYPE other unknown
other 3
# EOF
";
        let text = "\
# HELP calls_total Completed calls.
# TYPE calls_total counter
calls_total{code=\"a # \\\" # b\"} 1
# HELP duration_seconds Duration.
# TYPE duration_seconds histogram
duration_seconds_sum 0.5
duration_seconds_count 1
duration_seconds_bucket{le=\"+Inf\"} 1
# HELP build_info The version.
# TYPE build_info gauge
build_info{version=\"1\"} 1
# TYPE other untyped
other 3
";
        assert_eq!(to_prometheus_text(open), text);
        let exemplar = "requests_bucket{le=\"1\"} 8 # {trace_id=\"a\"} 0.67\n# EOF\n";
        assert_eq!(to_prometheus_text(exemplar), "requests_bucket{le=\"1\"} 8\n");
    }
}
