//! Times of files, as the protocols write them.

use nix::sys::time::TimeSpec;

/// Seconds of a day.
const DAY: i64 = 86_400;

/// Half of a Gregorian year, in seconds: what ls(1) counts as recent.
const HALF_YEAR: i64 = 31_556_952 / 2;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A time of whole seconds.
pub(super) fn at(seconds: i64) -> TimeSpec {
    TimeSpec::new(seconds, 0)
}

/// Leaves a time as it is: `UTIME_OMIT` of utimensat(2).
pub(super) const UNCHANGED: TimeSpec = TimeSpec::UTIME_OMIT;

/// The date as `ls -l` writes it, in UTC: with the time of day where it is recent, with the year otherwise.
pub(super) fn listed(seconds: i64, now: i64) -> String {
    let (year, month, day) = civil(seconds.div_euclid(DAY));
    let month = MONTHS[month];
    let recent = seconds <= now && now.saturating_sub(seconds) < HALF_YEAR;
    if recent {
        let of_day = seconds.rem_euclid(DAY);
        format!("{month} {day:>2} {:02}:{:02}", of_day / 3600, of_day / 60 % 60)
    } else {
        format!("{month} {day:>2} {year:>5}")
    }
}

/// Year, month from 0 and day from 1, of a day counted from 1970-01-01, in the proleptic Gregorian calendar.
fn civil(days: i64) -> (i64, usize, i64) {
    // Counted from 1 March of the year 0, so that a leap day is the last of its year; 400 years have 146,097 days.
    let days = days.saturating_add(719_468);
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on the lengths of months repeat every five: 153 days.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    let year = era * 400 + year_of_era + i64::from(month < 2);
    (year, usize::try_from(month).unwrap_or(0), day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(civil(0), (1970, 0, 1));
        assert_eq!(civil(-1), (1969, 11, 31));
        assert_eq!(civil(11_016), (2000, 1, 29));
        assert_eq!(civil(11_017), (2000, 2, 1));
        assert_eq!(civil(19_782), (2024, 1, 29));
        assert_eq!(civil(47_540), (2100, 1, 28));
        assert_eq!(civil(47_541), (2100, 2, 1));
    }

    #[test]
    fn a_recent_date_has_a_time_of_day_and_another_a_year() {
        let now = 1_700_000_000;
        assert_eq!(listed(now, now), "Nov 14 22:13");
        assert_eq!(listed(now - 2 * HALF_YEAR, now), "Nov 14  2022");
        assert_eq!(listed(now + DAY, now), "Nov 15  2023");
        for seconds in [i64::MIN, i64::MAX] {
            listed(seconds, now);
        }
    }
}
