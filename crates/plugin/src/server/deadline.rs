//! The deadline of a gRPC call: the header `grpc-timeout`.

use std::time::Duration;

use tonic::codegen::http::HeaderMap;

/// Returns the time that a client gives a call. A header that follows no rule is ignored, as in other servers: the client itself
/// gives up in time.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    // At most eight digits: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_in_all_units() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", value.parse().unwrap());
            timeout(&headers)
        };
        assert_eq!(of("45S"), Some(Duration::from_secs(45)));
        assert_eq!(of("44999943u"), Some(Duration::from_micros(44_999_943)));
        assert_eq!(of("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(of("2M"), Some(Duration::from_secs(120)));
        assert_eq!(of("7m"), Some(Duration::from_millis(7)));
        assert_eq!(of("8n"), Some(Duration::from_nanos(8)));
        for wrong in ["", "S", "45", "-4S", "123456789S", "4 S", "4s", "4\u{e9}"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }
}
