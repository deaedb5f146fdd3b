//! Log lines as JSON objects: time, level, message and target first, then the fields of the event.

use std::fmt;

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::{LookupSpan, Scope};

/// Formats an event as a JSON object on one line.
pub(super) struct Json;

/// The members of an object, in order.
#[derive(Default)]
struct Members(Vec<(&'static str, Value)>);

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let metadata = event.metadata();
        let mut fields = Members::default();
        event.record(&mut fields);
        let message = fields.0.iter().position(|(name, _)| *name == "message");
        let message = message.map_or(Value::Null, |index| fields.0.remove(index).1);
        let mut line = Members(vec![
            ("timestamp", timestamp.into()),
            ("level", metadata.level().as_str().into()),
            ("message", message),
            ("target", metadata.target().into()),
        ]);
        let spans: Vec<Value> = context
            .event_scope()
            .into_iter()
            .flat_map(Scope::from_root)
            .map(|span| match span.extensions().get::<FormattedFields<N>>() {
                Some(fields) if !fields.is_empty() => format!("{}{{{fields}}}", span.name()).into(),
                _ => span.name().into(),
            })
            .collect();
        if !spans.is_empty() {
            line.0.push(("spans", spans.into()));
        }
        line.0.append(&mut fields.0);
        let line = serde_json::to_string(&line).map_err(|_not_json| fmt::Error)?;
        writeln!(writer, "{line}")
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Visit for Members {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}").into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.push((field.name(), value.into()));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A log in memory.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_object_on_one_line_with_typed_fields() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).event_format(Json).finish();
        tracing::subscriber::with_default(subscriber, || {
            let _entered = tracing::info_span!("call", claim = 7).entered();
            let error = "two\n\"lines\"";
            tracing::warn!(pools = 1_u64, is_new = true, ?error, driver = "gpu", "publishing {}", "failed");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains('\n') && line.starts_with("{\"timestamp\":\"2"), "{line}");
        let mut object: Value = serde_json::from_str(line).unwrap();
        object.as_object_mut().unwrap().remove("timestamp");
        let expected = serde_json::json!({
            "level": "WARN", "message": "publishing failed", "target": module_path!(), "spans": ["call{claim=7}"],
            "pools": 1, "is_new": true, "error": "\"two\\n\\\"lines\\\"\"", "driver": "gpu",
        });
        assert_eq!(object, expected);
    }
}
