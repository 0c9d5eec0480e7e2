use super::*;
use crate::calibrate::test_data;
use approx::assert_abs_diff_eq;

#[test]
fn times_by_hand() {
    let dir = test_data::capture();
    let capture = Capture::read(&dir.path().join("set/run")).unwrap();
    let host = fit_host(&[capture]);
    // Step 1 ends at 0.160000 with nothing added, step 2 starts at 0.160013.
    assert_abs_diff_eq!(host.between_steps_s, 13e-6, epsilon = 1e-12);
    assert_eq!(
        (host.between_steps_n, host.add_request_n, host.add_request_idle_n),
        (1, 1, 1)
    );
    // Request 1 was due during step 0: from its end at 0.110000 to the end of the add at 0.110400.
    assert_abs_diff_eq!(host.add_request_s, 400e-6, epsilon = 1e-12);
    // Request 0 found the engine idle: due at 0.009, added at 0.0099.
    assert_abs_diff_eq!(host.add_request_idle_s.unwrap(), 900e-6, epsilon = 1e-12);
    assert_eq!(host.add_further_request_s, None);
}

#[test]
fn a_second_request_added_after_the_same_step_is_counted_apart() {
    let dir = test_data::capture();
    let mut capture = Capture::read(&dir.path().join("set/run")).unwrap();
    capture.requests.push(capture.requests[1].clone());
    capture.requests[2].add_end_s = Some(0.110480);
    capture.steps[1].added_total = 3;
    capture.steps[2].added_total = 3;
    let host = fit_host(&[capture.clone()]);
    assert_eq!((host.add_request_n, host.add_further_request_n), (1, 1));
    assert_abs_diff_eq!(host.add_further_request_s.unwrap(), 80e-6, epsilon = 1e-12);
    capture.manifest.mode = CaptureMode::Batch;
    assert_eq!(fit_host(&[capture]).add_request_n, 0);
}

#[test]
fn nothing_to_see_is_zero_with_a_count_of_zero() {
    assert_eq!(fit_host(&[]), HostFit::default());
}
