use std::time::Duration;

use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, KeyPair};

use super::*;

fn at(seconds: u64) -> String {
    moment(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

#[test]
fn moments_are_of_the_calendar() {
    assert_eq!(at(0), "1970-01-01 00:00 UTC");
    assert_eq!(at(951_782_399), "2000-02-28 23:59 UTC");
    assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
    assert_eq!(at(4_107_542_399), "2100-02-28 23:59 UTC");
    assert_eq!(at(4_107_542_400), "2100-03-01 00:00 UTC");
}

#[test]
fn a_certificate_is_read_as_it_was_made() {
    let mut params = CertificateParams::new(["api.example.com".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "one\ntwo");
    params.distinguished_name.push(DnType::OrganizationName, "Example");
    params.not_before = rcgen::date_time_ymd(2000, 2, 29);
    params.not_after = rcgen::date_time_ymd(2100, 3, 1);
    let key = KeyPair::generate().unwrap();
    let summary = Summary::read(params.self_signed(&key).unwrap().der()).unwrap();
    assert_eq!((summary.not_before, summary.not_after), (951_782_400, 4_107_542_400));
    assert_eq!(summary.public_key, key.public_key_raw());
    assert!(summary.is_self_issued() && !summary.signs);
    assert_eq!(name(&summary.subject), "CN=one?two, O=Example");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..8), end in any::<usize>()) {
        let params = CertificateParams::new(["api.example.com".to_owned()]).unwrap();
        let mut bytes = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        for (at, byte) in changes {
            let length = bytes.len();
            bytes[at % length] = byte;
        }
        if let Some(summary) = Summary::read(&bytes[..end % (bytes.len() + 1)]) {
            let _ = name(&summary.subject);
        }
        let _ = name(&bytes);
    }
}
