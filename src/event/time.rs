//! Instants as text.

use std::time::SystemTime;

use time::OffsetDateTime;

/// `at` in UTC to the second, as RFC 3339 §5.6 and the Kubernetes API write it: `2026-01-31T23:59:59Z`.
#[must_use]
pub fn rfc3339(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z", u8::from(month))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn instants_are_written_in_utc() {
        let at = |seconds| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(4_102_444_799_999)), "2099-12-31T23:59:59Z");
    }
}
