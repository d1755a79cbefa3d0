-- messages between machines by the states of TCP sockets: what tighten takes
-- A state that a machine sets before it sends a segment, and one that the other sets when it has received it:
-- the client's ESTABLISHED and the server's, by the last ACK of the handshake; FIN_WAIT1 and CLOSE_WAIT, by the FIN;
-- CLOSE_WAIT and FIN_WAIT2, by the ACK of the FIN. Only connections whose addresses and ports come once.
WITH states AS (
    SELECT *, count(*) OVER (PARTITION BY machine, family, sport, dport, saddr, daddr, saddr_v6, daddr_v6, oldstate, newstate) AS times
    FROM sock.inet_sock_set_state
    WHERE protocol = 6
)
SELECT sent.machine AS "from", CAST(sent.tai AS BIGINT) AS sent, received.machine AS "to", CAST(received.tai AS BIGINT) AS received
FROM states AS sent
JOIN states AS received
    ON received.family = sent.family AND received.sport = sent.dport AND received.dport = sent.sport
    AND received.saddr = sent.daddr AND received.daddr = sent.saddr
    AND received.saddr_v6 = sent.daddr_v6 AND received.daddr_v6 = sent.saddr_v6
WHERE sent.machine <> received.machine AND sent.times = 1 AND received.times = 1
    AND (
        sent.oldstate = 2 AND sent.newstate = 1 AND received.oldstate = 3 AND received.newstate = 1
        OR sent.oldstate = 1 AND sent.newstate = 4 AND received.oldstate = 1 AND received.newstate = 8
        OR sent.oldstate = 1 AND sent.newstate = 8 AND received.oldstate = 4 AND received.newstate = 5
    )
ORDER BY sent
