CREATE VIEW IF NOT EXISTS {database}.per_abort AS
SELECT
    slot, release, trend,
    multiIf(trend != 'live rises', '', best.2 - second > 0.02, best.1, 'cannot be told apart') AS follows,
    live_bytes_per_abort, abort_fit_ratio, live_bytes_per_request, request_fit_ratio, live_bytes_per_hour, fit_ratio, aborts, requests, quiet_points, gpu_uuid
FROM (
    SELECT *, arrayReverseSort(x -> x.2, [('time', ifNull(fit_ratio, 0)), ('aborts', ifNull(abort_fit_ratio, 0)), ('requests', ifNull(request_fit_ratio, 0))]) AS fits,
        fits[1] AS best, fits[2].2 AS second
    FROM {database}.worker_growth(since = {since:DateTime64(3, 'UTC')}, until = {until:DateTime64(3, 'UTC')},
        worker = {worker:String}, slot = {slot:String}, host = {host:String}, release = {release:String})
)
ORDER BY live_bytes_per_hour DESC, slot, gpu_uuid
COMMENT 'bytes that stay behind per abort and per request, and how well each explains the growth'
