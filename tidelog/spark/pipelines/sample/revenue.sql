SELECT
    window.start AS begins,
    window.end AS ends,
    region,
    count(*) AS orders,
    round(sum(total), 2) AS revenue
FROM valid
GROUP BY window(at, '10 seconds'), region
