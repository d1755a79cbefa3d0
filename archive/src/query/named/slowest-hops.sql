-- the messages that took longest from machine to machine, with how sure that is
SELECT sent.machine AS from_machine, received.machine AS to_machine, sent.message,
    sent.tai AS sent_tai,
    CAST(received.tai AS BIGINT) - CAST(sent.tai AS BIGINT) AS hop_ns,
    sent.tai_error + received.tai_error AS error_ns,
    happened_before(sent.stamp, received.stamp) AS sent_before_received
FROM net.message_send AS sent
JOIN net.message_receive AS received ON received.message = sent.message
ORDER BY hop_ns DESC, sent.message
LIMIT 20
