//! Calls that are made again until they succeed or time is up.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep, timeout_at};

use super::error::{ApiError, Failure};

/// Before the second try; doubled before each one after it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause that we choose ourselves: a server that is back is found soon enough.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Calls until it succeeds, fails for good, or `limit` is up; then the last error is the answer. What is transient
/// ([`ApiError::is_transient`]) is tried again, and so is a 401, once: every call reads its token anew, and ours may just
/// have been replaced. A server's own `Retry-After` is kept to, and where it lies behind the limit nothing is waited for.
///
/// # Errors
/// The last call's.
pub async fn within<T>(limit: Duration, mut call: impl AsyncFnMut() -> Result<T, ApiError>) -> Result<T, ApiError> {
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    let mut reauthorized = false;
    let mut last = None;
    loop {
        let error = match timeout_at(deadline, call()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            // How the calls before have failed says more than that there was no time for another.
            Err(_) => {
                return Err(last.unwrap_or_else(|| ApiError {
                    call: "call to the API server".to_owned(),
                    failure: Failure::TimedOut(limit),
                }));
            }
        };
        let again = match error.failure {
            Failure::Unauthorized(_) => !std::mem::replace(&mut reauthorized, true),
            _ => error.is_transient(),
        };
        let wait = error.retry_after().unwrap_or_default().max(scattered(pause));
        if !again || wait >= deadline.saturating_duration_since(Instant::now()) {
            return Err(error);
        }
        last = Some(error);
        sleep(wait).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Between half of `pause` and all of it: the nodes of a cluster, and the pods of a node, should not come back in step.
/// The clock's last digits are random enough for that.
fn scattered(pause: Duration) -> Duration {
    let noise = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    pause / 2 + pause.mul_f64(f64::from(noise % 1000) / 2000.0)
}
