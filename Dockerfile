# docker build -t dpscp . && docker run --rm -v "$PWD:/data" dpscp demo --folder demo
FROM python:3.12-slim
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir -c constraints.txt '.[demo]'
WORKDIR /data
USER 1000:1000
ENTRYPOINT ["dpscp"]
